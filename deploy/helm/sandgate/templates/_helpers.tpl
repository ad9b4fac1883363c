{{- define "sandgate.labels" -}}
app.kubernetes.io/name: sandgate
app.kubernetes.io/component: gateway
{{- end }}

{{/* What clients come in by; a change of routers applies it last (docs/migrating.md). */}}
{{- define "sandgate.entryLabels" -}}
app.kubernetes.io/name: sandgate
app.kubernetes.io/component: entry
{{- end }}

{{- define "sandgate.clusterRole" -}}
sandgate:{{ .Release.Namespace }}
{{- end }}

{{- define "sandgate.denied" -}}
default/kubernetes,kube-system/*,kube-public/*,kube-node-lease/*,*/sandbox-router-svc,{{ .Release.Namespace }}/*
{{- end }}

{{/* Pods of sandboxes, whatever their namespace. */}}
{{- define "sandgate.toSandboxes" -}}
- to:
    - namespaceSelector: {}
      podSelector:
        matchExpressions:
          - key: agents.x-k8s.io/sandbox-name-hash
            operator: Exists
{{- end }}
