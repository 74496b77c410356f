"""The review server: pages on this computer where a person decides about found duplicates.

The server calls the search, the keep rules, the plan, the journal and the store, as the command line does. Only
``clip_client.cli`` imports it.
"""
