"""The site file: what the names of computes and runtimes mean here."""

from rankwise.site.choices import ComputeChoice
from rankwise.site.finding import find_site
from rankwise.site.lookup import Site

__all__ = ["ComputeChoice", "Site", "find_site"]
