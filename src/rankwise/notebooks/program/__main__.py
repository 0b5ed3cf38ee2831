# The folder may be anywhere and have any name, so the package gets a name of its own. Its modules
# leave sys.path: a notebook's `import cells` must not find ours.
import sys
from pathlib import Path

_NAME = "rankwise_notebooks"
_folder = Path(__file__).resolve().parent
sys.path[:] = [place for place in sys.path if Path(place).resolve() != _folder]
_package = sys.modules[_NAME] = type(sys)(_NAME)
_package.__path__ = [str(_folder)]
__import__(f"{_NAME}.command_line")
sys.exit(sys.modules[f"{_NAME}.command_line"].main())
