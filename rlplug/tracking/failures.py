"""How an MLflow store can fail, as far as the writer must tell it apart."""

__all__ = ["StoreRefusedError", "StoreUnreachableError"]


class StoreUnreachableError(Exception):
    """It may work later: no connection, a server that fails, a database that is locked."""


class StoreRefusedError(Exception):
    """It will never work: a bad value, a deleted run, no permission."""
