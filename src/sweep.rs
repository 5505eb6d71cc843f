//! Sweeping: files past their age go, for a few milliseconds at a time under the cache lock, each looked at again before it
//! is touched.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use anyhow::{Result, anyhow};
use chrono::{DateTime, Utc};

use crate::bind::Home;
use crate::cache::{Facts, is_token};
use crate::clock;
use crate::config::TtlFrom;
use crate::exit::Refusal;
use crate::fault;
use crate::retention::{Action, Stored, Wish};
use crate::store::Store;

/// How long a sweep holds the lock at a time.
const HOLD: Duration = Duration::from_millis(5);

/// How long a sweep waits for the lock before it leaves the rest to the next.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many due files are looked at before they are touched.
const PAGE: u32 = 512;

/// What a sweep did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Files deleted.
    pub deleted: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Files taken out of `ready`, to be deleted one grace later.
    pub aged: u64,
    /// What stood in the way, one line each.
    pub trouble: Vec<String>,
    /// The lock was busy for too long; the rest is left to the next sweep.
    pub left_over: bool,
}

/// How many such pages the walk through the cache may be ahead of what is done.
const AHEAD: usize = 2;

/// Files, and what is to be done with each.
type Plan = Vec<(Facts, Action)>;

/// Base files that waiting jobs may still use, and since when they must have been published for that.
type Needed = HashMap<String, DateTime<Utc>>;

fn needed(store: &dyn Store) -> Result<Needed> {
    Ok(store.needed_bases()?.into_iter().collect())
}

fn plan(home: &Home, needed: &Needed, wish: Wish, file: &Facts, now: DateTime<Utc>) -> Action {
    home.cache.policy.action(file.dates, is_needed(needed, file), wish, now)
}

fn is_needed(needed: &Needed, file: &Facts) -> bool {
    needed.get(&file.filename).is_some_and(|since| file.dates.modified >= *since)
}

/// Walks the whole cache and takes what is over age, and what `wish` names.
///
/// # Errors
/// The cache or the database cannot be used at all; single files that resist stand in the report.
pub fn walk(home: &Home, store: &mut dyn Store, wish: Wish, dry_run: bool, now: DateTime<Utc>) -> Result<Report> {
    let needed = &needed(store)?;
    let mut report = Report::default();
    let (sender, pages) = mpsc::sync_channel(AHEAD);
    let walk_trouble = std::thread::scope(|scope| {
        let walker = std::thread::Builder::new()
            .spawn_scoped(scope, move || look_for_due(home, needed, wish, now, &sender))
            .map_err(|error| Refusal::try_later(format!("no thread to walk through the cache: {error}")))?;
        for page in pages {
            if dry_run {
                for (file, action) in &page {
                    count(&mut report, file, *action);
                }
            } else if !take(home, store, page, &mut report)? {
                break;
            }
        }
        walker.join().map_err(|_| anyhow!("the walk through the cache broke off"))
    })?;
    report.trouble.extend(walk_trouble);
    let room = make_room(home, store, dry_run, now)?;
    report.aged += room.aged;
    report.left_over |= room.left_over;
    report.trouble.extend(room.trouble);
    Ok(report)
}

/// Walks the cache and tells what is to be done, page by page, until nobody listens any more; gives back what stood in the way.
fn look_for_due(home: &Home, needed: &Needed, wish: Wish, now: DateTime<Utc>, tell: &SyncSender<Plan>) -> Vec<String> {
    let mut trouble = Vec::new();
    let mut page = Plan::with_capacity(PAGE as usize);
    for file in home.cache.walk(|line| trouble.push(line)) {
        let action = plan(home, needed, wish, &file, now);
        if action == Action::Keep {
            continue;
        }
        page.push((file, action));
        if page.len() >= PAGE as usize && tell.send(std::mem::take(&mut page)).is_err() {
            break;
        }
    }
    // Whoever listens no more leaves the rest to the next sweep.
    let _ = tell.send(page);
    trouble
}

/// Takes files that were not promised for the longest out of `ready` until the others fit into `cache.max_bytes`. Looks at
/// the whole cache only where the records say that they do not.
///
/// # Errors
/// As [`walk`].
pub fn by_size(home: &Home, store: &mut dyn Store, now: DateTime<Utc>) -> Result<Report> {
    let max = home.config.cache.max_bytes.0;
    if max == 0 || store.present_bytes()? <= max { Ok(Report::default()) } else { make_room(home, store, false, now) }
}

/// Ages what does not fit into `cache.max_bytes`, or only counts it.
fn make_room(home: &Home, store: &mut dyn Store, dry_run: bool, now: DateTime<Utc>) -> Result<Report> {
    let mut report = Report::default();
    let max = home.config.cache.max_bytes.0;
    if max == 0 {
        return Ok(report);
    }
    let needed = needed(store)?;
    let mut trouble = Vec::new();
    let files: Vec<Facts> = home.cache.walk(|line| trouble.push(line)).collect();
    let stored = |file: &Facts| Stored { dates: file.dates, bytes: file.bytes, is_needed: is_needed(&needed, file) };
    let stored: Vec<Stored> = files.iter().map(stored).collect();
    let surplus = home.cache.policy.surplus(&stored, max, now);
    let plan: Plan = surplus.into_iter().map(|at| (files[at].clone(), Action::Age)).collect();
    if dry_run {
        for (file, action) in &plan {
            count(&mut report, file, *action);
        }
    } else {
        take(home, store, plan, &mut report)?;
    }
    report.trouble.extend(trouble);
    Ok(report)
}

/// Takes one file out of `ready` because what it was made from changed; false when the lock was not to be had.
///
/// # Errors
/// The database cannot be used, or the file resists.
pub fn age(home: &Home, store: &mut dyn Store, file: Facts) -> Result<bool> {
    let mut report = Report::default();
    let is_done = take(home, store, vec![(file, Action::Age)], &mut report)?;
    report.trouble.pop().map_or(Ok(is_done), |trouble| Err(anyhow!(trouble)))
}

/// Tells the files which of them were handed out since then: front ends may not change them, and only note it.
///
/// # Errors
/// The database cannot be read; single files that resist stand in the report.
pub fn renew(home: &Home, store: &dyn Store, since: DateTime<Utc>) -> Result<Report> {
    let mut report = Report::default();
    if home.cache.policy.from == TtlFrom::Published {
        return Ok(report);
    }
    for (filename, at) in store.accesses(since)? {
        if let Err(error) = home.cache.renew(&filename, at) {
            report.trouble.push(format!("{filename}: {error}"));
        }
    }
    Ok(report)
}

/// Takes what is due by the index of runs: a minute's sweep never walks.
///
/// # Errors
/// As [`walk`].
pub fn by_index(home: &Home, store: &mut dyn Store, now: DateTime<Utc>) -> Result<Report> {
    let mut report = Report::default();
    let Some(before) = home.cache.policy.due_before(now) else {
        return Ok(report);
    };
    let needed = needed(store)?;
    // What is spared or resists stays in the index and is stepped over.
    let mut skip = 0;
    loop {
        let page = store.due_files(before, now, (skip, PAGE))?;
        let trouble_before = report.trouble.len();
        let Some(spared) = take_page(home, store, &needed, &page, &mut report, now)? else {
            return Ok(report);
        };
        let resisting = u32::try_from(report.trouble.len() - trouble_before).unwrap_or(u32::MAX);
        skip = skip.saturating_add(spared).saturating_add(resisting);
        if page.len() < PAGE as usize {
            return Ok(report);
        }
    }
}

/// Takes one page of due files; gives back how many were spared, or `None` when the lock was not to be had.
fn take_page(
    home: &Home,
    store: &mut dyn Store,
    needed: &Needed,
    page: &[String],
    report: &mut Report,
    now: DateTime<Utc>,
) -> Result<Option<u32>> {
    let before = home.cache.policy.due_before(now).unwrap_or_default();
    let (mut due, mut gone, mut spared) = (Vec::new(), Vec::new(), 0);
    for filename in page {
        match home.cache.find(filename)? {
            None => gone.push(filename.clone()),
            Some(file) => match plan(home, needed, Wish::default(), &file, now) {
                // Younger than its run says: a later run was lost.
                Action::Keep if file.dates.modified >= before => store.still_there(filename, file.dates.modified)?,
                Action::Keep if home.cache.policy.counted(file.dates, now) >= before => {
                    let at = home.cache.policy.counted(file.dates, now);
                    store.accessed(filename, at, at)?;
                }
                Action::Keep => spared += 1,
                action => due.push((file, action)),
            },
        }
    }
    store.swept(&gone)?;
    Ok(take(home, store, due, report)?.then_some(spared))
}

fn count(report: &mut Report, file: &Facts, action: Action) {
    match action {
        Action::Delete => {
            report.deleted += 1;
            report.bytes += file.bytes;
        }
        Action::Age => report.aged += 1,
        Action::Keep => {}
    }
}

/// Carries out a plan, for a moment at a time under the lock; false when the lock was not to be had.
fn take(home: &Home, store: &mut dyn Store, plan: Plan, report: &mut Report) -> Result<bool> {
    let mut plan = plan.into_iter().peekable();
    while plan.peek().is_some() {
        fault::point("sweep.before_lock")?;
        let Some(mut lock) = home.lock_cache(PATIENCE)? else {
            report.left_over = true;
            return Ok(false);
        };
        let until = clock::monotonic() + HOLD;
        let (mut deleted, mut aged) = (Vec::new(), BTreeMap::new());
        while let Some((file, action)) = plan.next_if(|_| clock::monotonic() < until) {
            // Not when this was planned: the path may have been handed out until now, and the grace begins with that.
            let now = clock::now();
            match home.cache.apply(&mut lock, &file, action, now) {
                Ok(true) => {
                    count(report, &file, action);
                    match action {
                        Action::Delete => deleted.push(file.filename),
                        Action::Age => drop(aged.insert(file.filename, home.cache.policy.aged(now))),
                        Action::Keep => {}
                    }
                }
                Ok(false) => {}
                Err(error) => report.trouble.push(format!("{}: {error}", file.path.display())),
            }
        }
        lock.release()?;
        // The database is told after the fact; what is missed here is noticed by the next look at the index.
        fault::point("sweep.before_commit")?;
        store.swept(&deleted)?;
        for (filename, date) in aged {
            store.still_there(&filename, date)?;
        }
    }
    Ok(true)
}

/// Removes work directories and logs that belong to no run any more.
///
/// # Errors
/// The directories or the database cannot be read.
pub fn remove_orphans(home: &Home, store: &dyn Store) -> Result<Vec<String>> {
    // What is there first, who owns it second: a directory is made after its run was claimed.
    let work = home.cache.work_tokens()?;
    let logs: Vec<String> = fs::read_dir(home.layout.logs())?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".log").map(str::to_owned))
        .filter(|token| is_token(token))
        .collect();
    if work.is_empty() && logs.is_empty() {
        return Ok(Vec::new());
    }
    let mut owned: std::collections::HashSet<String> = crate::recover::signed_tokens(home)?.into_keys().collect();
    owned.extend(store.tokens()?);
    let mut trouble = Vec::new();
    for token in work.iter().filter(|token| !owned.contains(*token)) {
        if let Err(error) = home.cache.remove_work(token) {
            trouble.push(format!("{}: {error}", home.layout.work_of(token).display()));
        }
    }
    for token in logs.iter().filter(|token| !owned.contains(*token)) {
        match fs::remove_file(home.layout.log(token)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                trouble.push(format!("{}: {error}", home.layout.log(token).display()));
            }
            _ => {}
        }
    }
    Ok(trouble)
}
