"""What runs in the pods: packed into one file, standard library only, imports nothing else of ours.

It must do with Python 3.10, as the runner does. The client uses `mirror` as well.
"""
