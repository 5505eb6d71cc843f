//! How a write waits for another process's write. SQLite's own way sleeps ever longer, so that whoever has waited longest looks
//! most seldom: with 64 at once some never got their turn. Here all look equally often.

use std::thread;
use std::time::Duration;

use rusqlite::Connection;

/// How long a write waits for its turn, and between two looks.
const PATIENCE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(4);

/// Lets writes of a connection wait for their turn.
pub(super) fn wait(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.busy_handler(Some(|looks: i32| {
        thread::sleep(LOOK);
        LOOK * looks.unsigned_abs() < PATIENCE
    }))
}

/// Does something that gives up at once where it is not its turn.
pub(super) fn or_never<T>(conn: &mut Connection, body: impl FnOnce(&mut Connection) -> T) -> rusqlite::Result<T> {
    conn.busy_timeout(Duration::ZERO)?;
    let done = body(conn);
    wait(conn)?;
    Ok(done)
}
