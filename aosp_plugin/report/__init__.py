"""What operators see of the running resources: status report and page, metrics, objects of the Node."""
