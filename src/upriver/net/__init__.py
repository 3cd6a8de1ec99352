"""Sockets, frames and codecs between the processes of an app and its clients."""
