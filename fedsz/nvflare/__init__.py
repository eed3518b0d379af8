"""fedsz for NVFlare: filters that compress the models of a job, both ways.

`add_fedsz` puts them into a recipe. The server's settings are in the job; clients have none.
"""

from fedsz.extras import explained

with explained():
    from fedsz.nvflare.client_filter import FedSZClientFilter
    from fedsz.nvflare.recipe import add_fedsz
    from fedsz.nvflare.server_filter import FedSZServerFilter

__all__ = ["FedSZClientFilter", "FedSZServerFilter", "add_fedsz"]
