"""The process that holds a client's data and keys: python hospital.py FOLDER DATA POLICY SOCKET."""

import sys

import hush

folder, data, policy, socket = sys.argv[1:]
hush.federation.client(folder, data, policy).serve(socket, once=True)
