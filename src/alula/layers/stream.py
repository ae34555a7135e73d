"""The values that flow between the device-resident forms of layers, for folders above that may not see kernels."""

from alula.kernels.reference.fused import Deferred, Norm, Rope, Stream

__all__ = ["Deferred", "Norm", "Rope", "Stream"]
