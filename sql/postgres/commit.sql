-- Everything of the transaction stays.
COMMIT
