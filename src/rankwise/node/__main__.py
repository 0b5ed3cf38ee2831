# A script is compiled anew at each start: this one does no more than to load `start`, which is not.
# The folder may be anywhere, and what is around it must not be imported: so it has its own name.
import os
import sys

_NAME = "rankwise_node"
_package = sys.modules[_NAME] = type(sys)(_NAME)
_package.__path__ = [__file__.rpartition("/")[0]]
__import__(f"{_NAME}.start")
# Not sys.exit: tidying up takes time, and there is nothing to tidy up.
os._exit(sys.modules[f"{_NAME}.start"].main(sys.argv[1:]))
