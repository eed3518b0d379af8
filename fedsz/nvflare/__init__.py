"""fedsz for NVFlare: filters that compress the models of a job, both ways.

`add_fedsz` puts them into a recipe. The server's settings are in the job; clients have none.
"""

from fedsz.extras import explained

with explained():
    from fedsz.nvflare.filters import FedSZClientFilter, FedSZServerFilter, add_fedsz

__all__ = ["FedSZClientFilter", "FedSZServerFilter", "add_fedsz"]
