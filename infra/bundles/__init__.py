"""The one reader of source bundles (tar, tar.gz, tar.bz2, tar.xz, zip): bounded, and checked as a whole before anything is handed out.

The formats are read here rather than by tarfile and zipfile, because those accept what this one must refuse (links, sparse
files, two names for one file, headers of any size) and differ between Python's versions. Calls block: run them off the loop.
"""

from schedmate.infra.bundles.bundle import Bundle, open_bundle
from schedmate.infra.bundles.limits import BundleError, BundleLimits

__all__ = ["Bundle", "BundleError", "BundleLimits", "open_bundle"]
