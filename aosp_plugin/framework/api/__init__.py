"""The kubelet's .proto file and what protoc made of it (``make proto``). Nothing here is written by hand."""
