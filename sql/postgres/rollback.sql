-- Nothing of the transaction stays.
ROLLBACK
