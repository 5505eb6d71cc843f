//! Many requests in one transaction. What most lines are (a new job, or one more caller for a live one) is written a thousand at
//! a time, so that a batch does not take a round trip a line; the others are asked for one by one. Each comes to what it would
//! come to alone, in its turn.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::link::Transaction;
use super::millis;
use super::params::named;
use super::request::{self, Desk, Turn, due_at, last_rank, take_turn};
use super::rows::{self, sure_int, sure_text};
use crate::job::Job;
use crate::rules::{self, Step};
use crate::store::{ANONYMOUS, Ask, Batch, Bound, Requested};

/// How many lines are written at a time.
const PAGE: usize = 1000;

/// Asks for all, or says which one was refused.
pub(super) fn request_all(tx: &Transaction<'_>, asks: &[Ask], now: DateTime<Utc>) -> Result<Batch> {
    tx.query(sql!("batch_lock"), &[])?;
    let bounded = asks.iter().filter(|ask| ask.bounds.queued > 0).map(|ask| ask.queue.as_str());
    for queue in bounded.collect::<BTreeSet<_>>() {
        take_turn(tx, queue, Turn::Alone)?;
    }
    let filenames: Vec<String> = asks.iter().map(|ask| ask.filename.clone()).collect();
    let found = tx.query(sql!("find_all_to_change"), named! {":filenames": filenames})?;
    let known = found.iter().map(|row| rows::job(row).map(|job| (job.filename.clone(), job)));
    let mut lines = Lines::new(tx, now, known.collect::<Result<_>>()?);
    for (at, ask) in asks.iter().enumerate() {
        if let Some(bound) = lines.take(ask)? {
            return Ok(Batch::Refused { at, bound });
        }
    }
    lines.write()?;
    Ok(Batch::Stored { queued: lines.queued, joined: lines.joined, failing: lines.failing })
}

/// The lines of a batch in their order, of which the last are not written yet.
struct Lines<'a, 'b> {
    tx: &'a Transaction<'b>,
    now: DateTime<Utc>,
    desk: Desk,
    /// The jobs that were there, by file; no longer those that a line was asked for alone.
    known: BTreeMap<String, Job>,
    /// The last rank of each client at each priority.
    ranks: BTreeMap<(&'a str, i64), Option<i64>>,
    new: Vec<(&'a Ask, Value)>,
    joining: Vec<(&'a Ask, i64)>,
    /// The files of lines that are not written yet, and of the jobs that this batch has made.
    unwritten: BTreeSet<&'a str>,
    made: BTreeSet<&'a str>,
    queued: u64,
    joined: u64,
    failing: u64,
}

impl<'a, 'b> Lines<'a, 'b> {
    fn new(tx: &'a Transaction<'b>, now: DateTime<Utc>, known: BTreeMap<String, Job>) -> Self {
        Self {
            tx,
            now,
            desk: Desk::new(Turn::Alone),
            known,
            ranks: BTreeMap::new(),
            new: Vec::new(),
            joining: Vec::new(),
            unwritten: BTreeSet::new(),
            made: BTreeSet::new(),
            queued: 0,
            joined: 0,
            failing: 0,
        }
    }

    /// Takes the next line; the bound that refuses it, if one does.
    fn take(&mut self, ask: &'a Ask) -> Result<Option<Bound>> {
        let is_first = ![&self.unwritten, &self.made].iter().any(|files| files.contains(ask.filename.as_str()));
        let row = self.known.get(&ask.filename);
        match rules::on_request(row, ask.retry, ask.hold, self.now) {
            Step::Insert if is_first && !ask.retry && request::refusal(self.tx, ask, &mut self.desk)?.is_none() => {
                let line = self.line(ask)?;
                self.new.push((ask, line));
                self.desk.room.take(ask);
            }
            Step::Join if is_first && !ask.retry && row.is_some_and(|job| ask.priority >= job.priority) => {
                self.joining.extend(row.map(|job| (ask, job.id)));
            }
            _ => return self.take_alone(ask),
        }
        self.unwritten.insert(&ask.filename);
        if self.unwritten.len() >= PAGE {
            self.write()?;
        }
        Ok(None)
    }

    /// Asks for a line that is not like most, after all that stand before it.
    fn take_alone(&mut self, ask: &'a Ask) -> Result<Option<Bound>> {
        self.write()?;
        self.ranks.clear();
        match request::request(self.tx, ask, &mut self.desk, self.now)? {
            Requested::Queued(job) => {
                self.queued += 1;
                self.known.insert(job.filename.clone(), job);
            }
            Requested::Joined(job) => {
                self.joined += 1;
                self.known.insert(job.filename.clone(), job);
            }
            Requested::Failing(_) => self.failing += 1,
            Requested::QueueFull => return Ok(Some(Bound::Queue)),
            Requested::ClientLimit => return Ok(Some(Bound::Client)),
        }
        Ok(None)
    }

    /// The row of a new job.
    fn line(&mut self, ask: &'a Ask) -> Result<Value> {
        let last = match &ask.client {
            None => None,
            Some(client) => match self.ranks.get(&(client.as_str(), ask.priority)) {
                Some(last) => *last,
                None => last_rank(self.tx, client, ask.priority)?,
            },
        };
        let rank = ask.rank.unwrap_or_else(|| rules::rank(self.now, ask.priority, last));
        if let Some(client) = &ask.client {
            self.ranks.insert((client, ask.priority), Some(last.map_or(rank, |last| last.max(rank))));
        }
        let (key, now, due_at) = (&ask.key, millis(self.now), due_at(ask, self.now));
        Ok(json!({
            "title": key.title, "lang": key.lang, "font": key.font, "format": key.format, "options": key.options_json(),
            "filename": ask.filename, "base_filename": ask.base_filename, "queue": ask.queue, "client": ask.client,
            "meta": ask.meta, "pages": ask.pages, "priority": ask.priority, "rank": rank, "submitted_at": now,
            "newer_than": ask.refresh.then_some(now), "due_at": due_at, "waits_for": due_at.map(|_| "not_before"),
            "wait_until": ask.wait_until.map(millis),
        }))
    }

    /// One more caller for a live job.
    fn joining(&self, ask: &Ask, id: i64) -> Value {
        let now = millis(self.now);
        json!({
            "id": id, "submitted_at": now, "newer_than": ask.refresh.then_some(now), "due_at": due_at(ask, self.now),
            "wait_until": ask.wait_until.map(millis),
        })
    }

    /// Writes what was not written yet.
    fn write(&mut self) -> Result<()> {
        self.unwritten.clear();
        let mut wanted: Vec<Value> = Vec::new();
        let mut want = |id: i64, ask: &Ask| {
            wanted.push(json!({"job_id": id, "client": ask.client.as_deref().unwrap_or(ANONYMOUS)}));
        };
        let (new, joining) = (std::mem::take(&mut self.new), std::mem::take(&mut self.joining));
        let made = self.insert(&new)?;
        for (ask, _) in &new {
            if let Some(id) = made.get(&ask.filename) {
                want(*id, ask);
                self.made.insert(&ask.filename);
            }
        }
        for (ask, id) in &joining {
            want(*id, ask);
        }
        let lines: Vec<Value> = joining.iter().map(|(ask, id)| self.joining(ask, *id)).collect();
        self.put(sql!("join_all"), &lines)?;
        self.joined += joining.len() as u64;
        self.put(sql!("interest_all"), &wanted)?;
        // Somebody else was quicker with these: they are joined.
        for (ask, _) in new.iter().filter(|(ask, _)| !made.contains_key(&ask.filename)) {
            self.desk.room.give_back(ask);
            self.take_alone(ask)?;
        }
        Ok(())
    }

    /// Writes new jobs; the numbers of those that were not there yet, by file.
    fn insert(&mut self, new: &[(&Ask, Value)]) -> Result<BTreeMap<String, i64>> {
        if new.is_empty() {
            return Ok(BTreeMap::new());
        }
        let lines: Vec<&Value> = new.iter().map(|(_, line)| line).collect();
        let made = self.tx.query(sql!("insert_all"), named! {":rows": serde_json::to_string(&lines)?})?;
        self.queued += made.len() as u64;
        made.iter().map(|row| Ok((sure_text(row, "filename")?, sure_int(row, "id")?))).collect()
    }

    fn put(&self, sql: &str, lines: &[Value]) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.tx.execute(sql, named! {":rows": serde_json::to_string(lines)?}).map(drop)
    }
}
