#!/bin/sh
# secrets.sh [NAMESPACE]   make the namespace and the Secrets that the overlays need; those that exist are left alone
#
#   cacheway-admin    hashes of the admin API's tokens; the first token is printed here, this once. More of them, and
#                     their end: `cacheway keys admin` (docs/kubernetes.md)
#   cacheway-data     the key that clients of the data port send; how to read it is printed here
#   cacheway-valkey   the password of the Valkeys in the cluster, and the URL by which replicas find them
set -eu
namespace=${1:-cacheway}

exists() { kubectl -n "$namespace" get secret "$1" >/dev/null 2>&1; }
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
if ! exists cacheway-admin; then
  token=cw-$(random)
  hash=$(printf %s "$token" | sha256sum | cut -c 1-64)
  printf '%s\n' "tokens:" "  operator: {role: write, hash: 'sha256:$hash'}" |
    kubectl -n "$namespace" create secret generic cacheway-admin --from-file=tokens.yaml=/dev/stdin
  echo "The token for the admin API. It is shown this once and stored nowhere: $token"
fi
if ! exists cacheway-data; then
  printf 'cw-%s' "$(random)" | kubectl -n "$namespace" create secret generic cacheway-data --from-file=api-key=/dev/stdin
  echo "The key for clients: kubectl -n $namespace get secret cacheway-data -o jsonpath='{.data.api-key}' | base64 -d"
fi
if ! exists cacheway-valkey; then
  password=$(random)
  sentinels=valkey-0.valkey:26379,valkey-1.valkey:26379,valkey-2.valkey:26379
  # A file, not an argument, which every user of this machine could see.
  printf 'password=%s\nurl=redis+sentinel://:%s@%s/cacheway?sentinel_password=%s\n' "$password" "$password" "$sentinels" "$password" |
    kubectl -n "$namespace" create secret generic cacheway-valkey --from-env-file=/dev/stdin
fi
