"""The kubelet's .proto file and what protoc made of it (``make generate``). Nothing here is written by hand."""
