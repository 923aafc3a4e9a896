"""Microversion 1.0: the wire of OpenStack Blazar.

Everything that differs at 1.0 is here: the models of requests and answers, the queries, and the form of errors. The
operations themselves are declared once, for all versions; ``tenure.api.blazar.operations`` gives those of 1.0 these
forms. Requests become the same domain values as those of later versions, and answers are written from the same ones.
"""
