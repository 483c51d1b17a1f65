#!/bin/sh
# valkey.sh server|sentinel   start one, by the others' view of the primary
# valkey.sh ping PORT         does it answer?
#
# The Sentinels name the primary. If none answers there was none yet, and the first of PEERS becomes it. A server that
# comes back is thus a replica of its successor, and never a second primary.
#
#   HOST    name of this pod, as the others call it       PEERS          names of all, the first one first
#   LISTEN  address to listen on                          PASSWORD_FILE  of servers and Sentinels
set -eu
service=cacheway
port=${VALKEY_PORT:-6379}
sentinel_port=${SENTINEL_PORT:-26379}
REDISCLI_AUTH=$(cat "$PASSWORD_FILE")
export REDISCLI_AUTH

primary() {
  for peer in $PEERS; do
    found=$(timeout 2 valkey-cli -h "$peer" -p "$sentinel_port" sentinel get-master-addr-by-name "$service" 2>/dev/null | head -n 1) || continue
    case $found in "" | *ERR* | *NOAUTH* | *WRONGPASS* | Could*) continue ;; esac
    echo "$found"
    return
  done
  echo "${PEERS%% *}"
}

case $1 in
  server)
    leader=$(primary)
    {
      echo "bind $LISTEN"
      echo "port $port"
      echo "protected-mode no"
      echo "requirepass $REDISCLI_AUTH"
      echo "primaryauth $REDISCLI_AUTH"
      echo "replica-announce-ip $HOST"
      # Its data can be rebuilt: nothing on disk, and memory bounded without evicting the log.
      echo 'save ""'
      echo "appendonly no"
      echo "repl-diskless-load on-empty-db"
      echo "maxmemory ${MAXMEMORY:-1gb}"
      echo "maxmemory-policy noeviction"
      [ "$leader" = "$HOST" ] || echo "replicaof $leader $port"
    } >"$DATA/server.conf"
    cd "$DATA"
    exec valkey-server "$DATA/server.conf"
    ;;
  sentinel)
    leader=$(primary)
    # A Sentinel does not start with a name that does not resolve; its pod may not exist yet.
    until getent hosts "$leader" || getent ahosts "$leader"; do sleep 1; done >/dev/null 2>&1
    {
      echo "bind $LISTEN"
      echo "port $sentinel_port"
      echo "protected-mode no"
      echo "requirepass $REDISCLI_AUTH"
      echo "sentinel sentinel-pass $REDISCLI_AUTH"
      echo "sentinel resolve-hostnames yes"
      echo "sentinel announce-hostnames yes"
      echo "sentinel announce-ip $HOST"
      # The same after a restart: a new one each time would leave ghosts behind, and majorities out of reach.
      echo "sentinel myid $(printf %s "$HOST" | sha1sum | cut -c 1-40)"
      echo "sentinel monitor $service $leader $port 2"
      echo "sentinel auth-pass $service $REDISCLI_AUTH"
      # As long as a replica of the gateway may be silent before the others give it up.
      echo "sentinel down-after-milliseconds $service ${DOWN_AFTER_MS:-3000}"
      echo "sentinel failover-timeout $service ${FAILOVER_TIMEOUT_MS:-15000}"
      echo "sentinel parallel-syncs $service 2"
    } >"$DATA/sentinel.conf"
    cd "$DATA"
    exec valkey-server "$DATA/sentinel.conf" --sentinel
    ;;
  ping)
    [ "$(timeout 2 valkey-cli -h "$LISTEN" -p "$2" ping)" = PONG ]
    ;;
esac
