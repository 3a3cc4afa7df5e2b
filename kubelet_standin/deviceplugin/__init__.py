"""The stand-in kubelet for device plugins: :class:`Kubelet`, its pods, and the podresources API."""

from kubelet_standin.deviceplugin.faults import Faults
from kubelet_standin.deviceplugin.kubelet import Kubelet
from kubelet_standin.deviceplugin.podresources import PodResources
from kubelet_standin.deviceplugin.pods import AdmissionError, Container, ContainerAllocation, DeviceSpec, Mount, Pod
from kubelet_standin.events import Event
from kubelet_standin.versions import KubeletVersion

__all__ = [
    "AdmissionError",
    "Container",
    "ContainerAllocation",
    "DeviceSpec",
    "Event",
    "Faults",
    "Kubelet",
    "KubeletVersion",
    "Mount",
    "Pod",
    "PodResources",
]
