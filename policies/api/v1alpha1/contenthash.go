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
// how a quantity or a duration is spelled (40Gi or 40960Mi, 60s or 1m), nor on
// whether an empty list or object is written down. The order of tiers counts,
// and so does that of every other list.
//
// What is hashed is the spec as JSON with sorted keys, without blanks, without
// empty lists and objects, with minMemory as a number of bytes, and with sharing as
// [Sharing.Canonical] has it.
func (s AcceleratorPolicySpec) ContentHash() string {
	c := s.DeepCopy()
	c.ActiveRevision = nil
	c.Default()
	if q := c.Constraints.MinMemory; q != nil {
		// Value rounds up to whole bytes, which is what a minimum means.
		c.Constraints.MinMemory = resource.NewQuantity(q.Value(), resource.DecimalSI)
	}
	c.Sharing = c.Sharing.Canonical()
	if c.MixTiers == MixTiersNever {
		c.MixTiers = "" // the same, and as it was before the field was there
	}
	raw, err := canonicalJSON(c)
	if err != nil {
		// The type holds nothing that JSON can't write.
		panic(fmt.Sprintf("hashing a policy, %v", err))
	}
	sum := sha256.Sum256(raw)
	return HashPrefix + hex.EncodeToString(sum[:])
}

func canonicalJSON(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	return json.Marshal(withoutEmpty(tree)) // sorts keys
}

// withoutEmpty drops empty lists and objects from objects, from the leaves up.
func withoutEmpty(tree any) any {
	switch node := tree.(type) {
	case map[string]any:
		for k, child := range node {
			child = withoutEmpty(child)
			node[k] = child
			if isEmpty(child) {
				delete(node, k)
			}
		}
	case []any:
		for i := range node {
			node[i] = withoutEmpty(node[i])
		}
	}
	return tree
}

func isEmpty(tree any) bool {
	switch node := tree.(type) {
	case map[string]any:
		return len(node) == 0
	case []any:
		return len(node) == 0
	default:
		return node == nil
	}
}
