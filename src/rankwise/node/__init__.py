"""What runs elsewhere: around every process, in allocations, on other hosts, in pods.

The whole folder is copied to other machines and started there by the path of `__main__.py`, with
any Python from 3.10 on. So it needs the standard library only, imports nothing of ours but itself,
and that relatively: it may be called differently there. The client imports it as well.
"""
