-- The next rows of a table that is read page by page.
FETCH 1000 FROM leaving
