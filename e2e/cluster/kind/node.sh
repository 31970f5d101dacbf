#!/bin/sh
# Keeps the routes of a node to the pods of the others: a container gets another
# address when it is restarted, and the kernel forgets the routes.
own=$(hostname)
while :; do
  while read -r subnet node; do
    [ "$node" = "$own" ] && continue
    if read -r address _ <<EOF && [ -n "$address" ]; then
$(getent ahostsv4 "$node")
EOF
      ip route replace "$subnet" via "$address"
    fi
  done </etc/ladder/routes
  sleep 10
done
