package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// HashPrefix opens every content hash and digest of this API.
const HashPrefix = "sha256:"

// ContentHash identifies what a policy says: "sha256:" and 64 hex digits. It
// leaves activeRevision out, fills in defaults first, and does not depend on
// how a quantity or a duration is spelled (40Gi or 40960Mi, 60s or 1m). The
// order of tiers counts, and so does that of every other list.
func (s AcceleratorPolicySpec) ContentHash() string {
	c := s.DeepCopy()
	c.ActiveRevision = nil
	c.Default()
	if q := c.Constraints.MinMemory; q != nil {
		// Value rounds up to whole bytes, which is what a minimum means.
		c.Constraints.MinMemory = resource.NewQuantity(q.Value(), resource.DecimalSI)
	}
	if ns := c.NamespaceSelector; ns != nil && len(ns.MatchLabels) == 0 && len(ns.MatchExpressions) == 0 {
		c.NamespaceSelector = nil // both mean every namespace
	}
	raw, err := json.Marshal(c)
	if err != nil {
		// The type holds nothing that JSON can't write.
		panic(fmt.Sprintf("hashing a policy, %v", err))
	}
	sum := sha256.Sum256(raw)
	return HashPrefix + hex.EncodeToString(sum[:])
}
