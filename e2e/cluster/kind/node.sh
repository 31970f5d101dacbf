#!/bin/sh
# Keeps the routes of a node to the pods of the others: a container gets another
# address when it is restarted, and the kernel forgets the routes.
while :; do
  while read -r subnet node; do
    [ "$node" = "$(hostname)" ] && continue
    address=$(getent ahostsv4 "$node" | awk 'NR == 1 { print $1 }')
    [ -n "$address" ] && ip route replace "$subnet" via "$address"
  done </etc/ladder/routes
  sleep 5
done
