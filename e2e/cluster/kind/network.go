package kind

// The network of pods, of plugins that each node image has: a pair of devices
// for each pod, addresses from the node's own subnet, and a route to the subnet
// of each other node.

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// conflist is the configuration of the network plugins for a node.
func conflist(podCIDR string) ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "ladder",
		"plugins": []object{
			{
				"type":   "ptp",
				"ipMasq": true,
				"ipam": object{
					"type":    "host-local",
					"dataDir": "/run/cni-ipam-state",
					"routes":  []object{{"dst": "0.0.0.0/0"}},
					"ranges":  [][]object{{{"subnet": podCIDR}}},
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
}

// routes are the lines from which a node keeps its routes.
func routes(podCIDRs map[string]string) []byte {
	var b bytes.Buffer
	for _, node := range slices.Sorted(maps.Keys(podCIDRs)) {
		fmt.Fprintf(&b, "%s %s\n", podCIDRs[node], node)
	}
	return b.Bytes()
}

//go:embed node.sh
var routesScript []byte

// BootIDFile is the file on each node that holds another word after each
// restart of the node. The kernel's own is the same for all nodes, and
// survives their restarts.
const BootIDFile = "/var/lib/ladder/boot_id"

const routesUnit = `[Unit]
Description=Routes to the pods of other nodes
After=network.target

[Service]
ExecStart=/usr/local/lib/ladder/routes
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
`

const bootUnit = `[Unit]
Description=Identity of this start of the node
Before=kubelet.service containerd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'mkdir -p /var/lib/ladder && cat /proc/sys/kernel/random/uuid >/var/lib/ladder/boot_id.new && mv /var/lib/ladder/boot_id.new ` + BootIDFile + `'

[Install]
WantedBy=multi-user.target
`

// nodeFile is a file that is written on a node.
type nodeFile struct {
	path    string
	mode    int64
	content []byte
}

// nodeFiles are the files that make a node of kind one of ours.
func nodeFiles(node string, podCIDRs map[string]string) ([]nodeFile, error) {
	network, err := conflist(podCIDRs[node])
	if err != nil {
		return nil, fmt.Errorf("making the network configuration, %w", err)
	}
	return []nodeFile{
		{"etc/ladder/routes", 0o644, routes(podCIDRs)},
		{"usr/local/lib/ladder/routes", 0o755, routesScript},
		{"etc/systemd/system/ladder-routes.service", 0o644, []byte(routesUnit)},
		{"etc/systemd/system/ladder-boot-id.service", 0o644, []byte(bootUnit)},
		// Last: kubelet calls the node ready when it sees this.
		{"etc/cni/net.d/10-ladder.conflist", 0o644, network},
	}, nil
}

// archive packs files for tar on the node.
func archive(files []nodeFile) (*bytes.Buffer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content))}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("packing %s, %w", f.path, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("packing %s, %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing files, %w", err)
	}
	return &b, nil
}

// podCIDRs returns the subnet of each node, or false while one has none.
func podCIDRs(nodes []corev1.Node, want []string) (map[string]string, bool) {
	subnets := map[string]string{}
	for _, n := range nodes {
		if slices.Contains(want, n.Name) && n.Spec.PodCIDR != "" {
			subnets[n.Name] = n.Spec.PodCIDR
		}
	}
	return subnets, len(subnets) == len(want)
}

// writeFiles puts files on a node, below its root.
func (c *Cluster) writeFiles(ctx context.Context, node string, files []nodeFile) error {
	packed, err := archive(files)
	if err != nil {
		return err
	}
	if _, err := c.execIn(ctx, packed, node, "tar", "--extract", "--no-same-owner", "--directory=/"); err != nil {
		return fmt.Errorf("writing files on %s, %w", node, err)
	}
	return nil
}

// join makes a registered node part of the network and gives it an identity of
// its start.
func (c *Cluster) join(ctx context.Context, node string, subnets map[string]string) error {
	files, err := nodeFiles(node, subnets)
	if err != nil {
		return err
	}
	if err := c.writeFiles(ctx, node, files); err != nil {
		return err
	}
	for _, command := range []string{"systemctl daemon-reload", "systemctl enable --now ladder-boot-id.service ladder-routes.service"} {
		if _, err := c.Exec(ctx, node, strings.Fields(command)...); err != nil {
			return fmt.Errorf("starting what keeps the network of %s, %w", node, err)
		}
	}
	return nil
}
