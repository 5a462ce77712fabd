"""Several servers behind one address: a proxy sends each request to the replica that has its prefix cached.

    client ──▶ front (keys, rates, the router) ──▶ replica-0, replica-1, … : processes of this machine
                                              └──▶ --worker URL: servers on other machines
"""
