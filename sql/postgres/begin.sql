-- Every transaction, whatever the server's default: each statement sees what was committed before it.
BEGIN ISOLATION LEVEL READ COMMITTED
