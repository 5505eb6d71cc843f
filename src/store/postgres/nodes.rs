//! The machines that share the queue.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::Row;

use super::link::Transaction;
use super::params::named;
use super::rows::{Cells, sure_int, sure_text, sure_time};
use super::span;
use crate::store::{Node, Seen};

/// After how long nodes that were not seen are forgotten.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn heartbeat(tx: &Transaction<'_>, node: &Node) -> Result<()> {
    let Node { id, name, version, slots, lanes } = node.clone();
    let (slots, lanes) = (i64::from(slots), lanes.map(|lanes| serde_json::to_string(&lanes)).transpose()?);
    let params = named! {":id": id, ":name": name, ":version": version, ":slots": slots, ":lanes": lanes};
    tx.execute(sql!("heartbeat"), params)?;
    tx.execute(sql!("forget_nodes"), named! {":kept": span(KEPT)}).map(drop)
}

pub(super) fn all(tx: &Transaction<'_>) -> Result<Vec<Seen>> {
    tx.query(sql!("nodes"), &[])?.iter().map(seen).collect()
}

fn seen(row: &Row) -> Result<Seen> {
    let node = Node {
        id: sure_text(row, "id")?,
        name: sure_text(row, "name")?,
        version: sure_text(row, "version")?,
        slots: u32::try_from(sure_int(row, "slots")?).unwrap_or(u32::MAX),
        lanes: row.text("lanes")?.map(|lanes| serde_json::from_str(&lanes)).transpose().context("reading lanes")?,
    };
    Ok(Seen {
        node,
        first: sure_time(row, "first_seen")?,
        last: sure_time(row, "last_seen")?,
        silent: Duration::from_millis(u64::try_from(sure_int(row, "silent")?).unwrap_or(0)),
        started: sure_int(row, "started")?.unsigned_abs(),
    })
}
