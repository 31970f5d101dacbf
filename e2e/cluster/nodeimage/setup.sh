#!/bin/bash
# Makes the root file system with kind's files a node: it runs once, in the
# container from which the node image is made.
set -o errexit -o nounset -o pipefail

# Of the units that the packages enable, a container wants none: the devices,
# file systems and sockets that they care for are the host's.
rm -f /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
rm -f /lib/systemd/system/{multi-user,local-fs,basic}.target.wants/*
rm -f /lib/systemd/system/sockets.target.wants/*{udev,initctl}*
rm -f /etc/systemd/system/*.wants/*
# What the kernel says would be repeated in the journal of each node.
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\nReadKMsg=no\n' >/etc/systemd/journald.conf.d/kernel.conf
ln -sf /usr/lib/systemd/systemd /usr/sbin/init

systemctl enable kubelet.service containerd.service undo-mount-hacks.service
# It would register formats with the kernel, for the host too.
systemctl mask systemd-binfmt.service

# Containers see the product files that kind fakes for each node, and get the
# node's own limits.
ctr oci spec |
  jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
    >/etc/containerd/cri-base.json

runc --version
containerd --version
