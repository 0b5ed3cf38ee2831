"""A runtime is more than its Python: numbers come out right."""

from __future__ import annotations

import numpy

left = numpy.arange(12.0).reshape(3, 4)
product = left @ left.T
assert product[0, 0] == 14.0, product
assert numpy.allclose(product, product.T)
print("numpy", numpy.__version__, "is right")
