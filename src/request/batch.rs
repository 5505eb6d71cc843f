//! Many requests at once: one JSON object a line with the names of the options of `request`, all of them or none.
//!
//! Every line is looked at before the first row is written, so that all that is wrong is told at once; the rows are written in
//! one transaction, so that whoever is told "accepted" can rely on each of them, and whoever is not on none.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::{Wishes, ask, config_denies, filename_of, poke};
use crate::bind::Home;
use crate::cache::Shards;
use crate::clock;
use crate::config::Span;
use crate::exit::Refusal;
use crate::fault;
use crate::key::{self, Key, Selection};
use crate::store::{Ask, Batch, Bound, Patience};

/// The longest line, in bytes.
const MAX_LINE: u64 = 64 * 1024;

/// So many bad lines are named; of the others only the number.
const MAX_NAMED: usize = 100;

/// A line of a batch.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Line {
    title: String,
    lang: Option<String>,
    font: Option<String>,
    format: Option<String>,
    #[serde(default, alias = "options")]
    opt: BTreeMap<String, String>,
    #[serde(default)]
    refresh: bool,
    #[serde(default)]
    retry: bool,
    priority: Option<i64>,
    client: Option<String>,
    meta: Option<serde_json::Value>,
    pages: Option<u32>,
    queue: Option<String>,
    delay: Option<Span>,
    #[serde(alias = "not_before")]
    not_before: Option<DateTime<Utc>>,
    #[serde(alias = "max_wait")]
    max_wait: Option<Span>,
}

impl Line {
    fn parts(self) -> (Selection, Wishes) {
        let selection = Selection {
            title: self.title,
            lang: self.lang,
            font: self.font,
            format: self.format,
            options: self.opt.into_iter().collect(),
        };
        let wishes = Wishes {
            refresh: self.refresh,
            retry: self.retry,
            priority: self.priority,
            client: self.client,
            meta: self.meta.map(|meta| meta.to_string()),
            pages: self.pages,
            queue: self.queue,
            delay: self.delay.map(|span| span.0),
            not_before: self.not_before,
            max_wait: self.max_wait.map(|span| span.0),
        };
        (selection, wishes)
    }
}

/// What a batch came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// New jobs, and failed ones that start afresh.
    pub accepted: u64,
    /// Live jobs that were joined; a line that says the same as one before it joins that one.
    pub joined: u64,
    /// Files that are ready: nothing was stored for them.
    pub ready: u64,
    /// Failures so young that they are the answer.
    pub failed: u64,
}

/// Asks for everything that the lines name, or for nothing.
///
/// # Errors
/// A line is not valid (2, each named), a bound is reached (75), or the database cannot be used.
pub fn request_all(home: &Home, input: &mut dyn BufRead) -> Result<Counted> {
    // Read once and before the first look at a file, as for one request.
    let now = clock::now();
    let (asks, lines, ready) = read(home, input, now)?;
    let mut counted = Counted { ready, ..Counted::default() };
    if asks.is_empty() {
        return Ok(counted);
    }
    match home.open_to_ask_with(Patience::BATCH)?.request_all(&asks, now)? {
        Batch::Stored { queued, joined, failing } => {
            (counted.accepted, counted.joined, counted.failed) = (queued, joined, failing);
        }
        Batch::Refused { at, bound } => {
            let what = match bound {
                Bound::Client => "its client has as many jobs as it may",
                Bound::Queue => "the queue holds as many jobs as it may",
            };
            return Err(Refusal::try_later(format!("line {}: {what}; nothing is stored", lines[at])));
        }
    }
    fault::point("request.after_commit")?;
    poke(home)?;
    Ok(counted)
}

/// What is to be stored, the lines that say so, and how many files are ready.
fn read(home: &Home, input: &mut dyn BufRead, now: DateTime<Utc>) -> Result<(Vec<Ask>, Vec<usize>, u64)> {
    let (mut asks, mut lines, mut ready, mut bad) = (Vec::new(), Vec::new(), 0, Vec::new());
    let (mut bytes, mut shards) = (Vec::new(), Shards::default());
    for number in 1.. {
        bytes.clear();
        if Read::take(&mut *input, MAX_LINE).read_until(b'\n', &mut bytes).context("reading the batch")? == 0 {
            break;
        }
        if bytes.len() as u64 == MAX_LINE {
            bad.push(format!("line {number}: longer than {MAX_LINE} bytes; what follows was not read"));
            break;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let (key, wishes) = match wish(home, &bytes, now) {
            Ok(wish) => wish,
            Err(fault) => {
                bad.push(format!("line {number}: {fault}"));
                continue;
            }
        };
        let filename = filename_of(home, &key);
        if !wishes.refresh && home.ready_in(&mut shards, &filename, now)?.is_some() {
            ready += 1;
        } else {
            asks.push(ask(home, key, filename, &wishes, now));
            lines.push(number);
        }
    }
    if bad.is_empty() { Ok((asks, lines, ready)) } else { Err(told(&bad)) }
}

fn wish(home: &Home, line: &[u8], now: DateTime<Utc>) -> Result<(Key, Wishes), String> {
    let line: Line = serde_json::from_slice(line).map_err(|error| {
        // Its own "at line 1" would only confuse.
        let text = error.to_string();
        text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
    })?;
    let (selection, wishes) = line.parts();
    let key = key::resolve(&home.config, &selection).map_err(|error| error.to_string())?;
    if let Some(fault) = wishes.fault(&home.config, now) {
        return Err(fault);
    }
    config_denies(home, &key).map_or(Ok((key, wishes)), |message| Err(format!("denied: {message}")))
}

fn told(bad: &[String]) -> anyhow::Error {
    let mut lines: Vec<String> = bad.iter().take(MAX_NAMED).cloned().collect();
    lines.extend(bad.len().checked_sub(MAX_NAMED).filter(|more| *more > 0).map(|more| format!("and {more} more")));
    lines.push("nothing is stored".to_owned());
    Refusal::usage(lines.join("\n"))
}
