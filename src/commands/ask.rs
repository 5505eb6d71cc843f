//! Commands about one export.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Start;
use crate::bind::Home;
use crate::cli::{Select, Terms, Variant};
use crate::clock;
use crate::exit::{Exit, Refusal};
use crate::exporter;
use crate::job::{Job, Phase, Waiting};
use crate::key::Key;
use crate::output;
use crate::request::{self, Answer, Wishes, Would};
use crate::retention::Standing;
use crate::store::{Cancelled, Past, Store};

/// The longest title file that is read, in bytes; a longer one holds no title.
const TITLE_FILE_BYTES: u64 = 64 * 1024;

/// The export that a caller names.
struct Chosen {
    key: Key,
    filename: String,
}

impl Chosen {
    fn ready(&self, home: &Home) -> Result<Option<Answer>> {
        request::ready(home, &self.key, &self.filename)
    }

    fn status(&self, home: &Home) -> Result<Answer> {
        request::status_of(home, &self.key, &self.filename)
    }
}

fn choose(home: &Home, select: &Select) -> Result<Chosen> {
    if let Some(id) = select.id {
        let store = home.open_to_read()?;
        let job = store.map(|store| store.find_by_id(id)).transpose()?.flatten();
        let chosen = job.map(|job| Chosen { key: job.key, filename: job.filename });
        return chosen.ok_or_else(|| Refusal::with(Exit::Absent, format!("there is no job {id}")));
    }
    if let Some(filename) = &select.filename {
        return Ok(Chosen { key: key_of_filename(home, filename)?, filename: filename.clone() });
    }
    let key = key_of_title(home, select)?;
    Ok(Chosen { filename: request::filename_of(home, &key), key })
}

/// The export that a caller wants to have made.
fn key_to_make(home: &Home, select: &Select) -> Result<Key> {
    let Chosen { key, .. } = choose(home, select)?;
    if home.config.format.contains_key(&key.format) {
        Ok(key)
    } else {
        Err(Refusal::usage(format!("format {} is not configured any more", key.format)))
    }
}

fn key_of_title(home: &Home, select: &Select) -> Result<Key> {
    let title = match (&select.title, &select.title_file) {
        (Some(title), _) => title.clone(),
        (None, Some(path)) => read_title(path)?,
        (None, None) => return Err(Refusal::usage("a title is needed")),
    };
    request::key_of(&home.config, &select.variant.of(title))
}

fn key_of_filename(home: &Home, filename: &str) -> Result<Key> {
    let Some(store) = home.open_to_read()? else {
        return Err(Refusal::with(Exit::Absent, format!("nothing is known of {}", exporter::plain(filename))));
    };
    if let Some(job) = store.find(filename)? {
        return Ok(job.key);
    }
    let run = store.history(Some(filename), 1)?.pop();
    run.map(|run| run.key)
        .ok_or_else(|| Refusal::with(Exit::Absent, format!("nothing is known of {}", exporter::plain(filename))))
}

fn read_title(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(TITLE_FILE_BYTES).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(TITLE_FILE_BYTES).read_to_end(&mut bytes))
    };
    read.map_err(|error| Refusal::usage(format!("cannot read the title from {}: {error}", path.display())))?;
    let text = String::from_utf8(bytes).map_err(|_| Refusal::usage("the title is not valid UTF-8"))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn print(start: &Start, answer: &Answer) -> Result<Exit> {
    let text = if start.global.json {
        output::status_json(answer)
    } else if start.wants_color() {
        output::painted(&output::status_line(answer), answer.exit())
    } else {
        output::status_line(answer)
    };
    output::say(&text)?;
    Ok(answer.exit())
}

fn await_final(start: &Start, home: &Home, answer: Answer, wait: Option<Duration>) -> Result<Answer> {
    let Some(patience) = wait else {
        return Ok(answer);
    };
    let answer = request::await_final(home, answer, patience)?;
    if answer.waiting == Some(Waiting::NoDispatcher) {
        start.tell("nobody has dispatched for two minutes: is `export-queue dispatch` in the crontab?");
    }
    Ok(answer)
}

pub(super) fn request(start: &Start, select: &Select, terms: Terms, wait: Option<Duration>) -> Result<Exit> {
    let home = start.home()?;
    let key = key_to_make(&home, select)?;
    let answer = request::request(&home, &key, &terms.wishes())?;
    print(start, &await_final(start, &home, answer, wait)?)
}

pub(super) fn rehearse(start: &Start, select: &Select, terms: Terms) -> Result<Exit> {
    let home = start.home()?;
    let key = key_to_make(&home, select)?;
    let (would, answer) = request::rehearse(&home, &key, &terms.wishes())?;
    let (word, text) = match would {
        Would::Answer => ("answer", "nothing would be stored"),
        Would::Queue => ("queue", "would be queued"),
        Would::Join => ("join", "a live job would be joined"),
    };
    if start.global.json {
        let status: serde_json::Value = serde_json::from_str(&output::status_json(&answer))?;
        output::say(&serde_json::json!({"schema": 1, "dry_run": true, "would": word, "status": status}).to_string())?;
    } else {
        output::say(&format!("{text}: {}", output::status_line(&answer)))?;
    }
    Ok(answer.exit())
}

pub(super) fn status(start: &Start, select: &Select, wait: Option<Duration>) -> Result<Exit> {
    let home = start.home()?;
    let chosen = choose(&home, select)?;
    // All that a line of text says of a ready file, the file says by itself.
    let by_file = if start.global.json || wait.is_some() { None } else { chosen.ready(&home)? };
    let answer = by_file.map_or_else(|| chosen.status(&home), Ok)?;
    print(start, &await_final(start, &home, answer, wait)?)
}

pub(super) fn fetch(start: &Start, select: &Select, output: &Path) -> Result<Exit> {
    let home = start.home()?;
    let answer = choose(&home, select)?.status(&home)?;
    let Some((facts, _)) = &answer.file else {
        if output == Path::new("-") && !start.global.json {
            // Where a book is expected, nothing else is written.
            start.tell(&output::status_line(&answer));
            return Ok(answer.exit());
        }
        return print(start, &answer);
    };
    // Opened first: from here on the file stays whole, whatever becomes of its name.
    let mut file = open_nofollow(&facts.path).with_context(|| format!("opening {}", facts.path.display()))?;
    if output == Path::new("-") {
        return match io::copy(&mut file, &mut io::stdout().lock()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
            _ => Ok(Exit::Done),
        };
    }
    let copied = if is_replaceable(output) { copy_whole(&mut file, output) } else { copy_through(&mut file, output) };
    copied.with_context(|| format!("writing {}", output.display()))?;
    print(start, &answer)
}

fn open_nofollow(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// Whether a name is free or an ordinary file's. A link or a device (`/dev/stdout` is both) is written to and stays.
fn is_replaceable(output: &Path) -> bool {
    fs::symlink_metadata(output).map_or(true, |meta| meta.is_file())
}

fn copy_through(file: &mut File, output: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create(true).truncate(true).open(output)?;
    io::copy(file, &mut target).map(drop)
}

fn copy_whole(file: &mut File, output: &Path) -> io::Result<()> {
    let dir = output.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut copy =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644)).tempfile_in(dir)?;
    let copied = io::copy(file, &mut copy)?;
    if copied != file.metadata()?.size() {
        return Err(io::Error::other("the copy is short"));
    }
    copy.as_file().sync_all()?;
    copy.persist(output)?;
    Ok(())
}

pub(super) fn explain(start: &Start, select: &Select) -> Result<Exit> {
    let home = start.home()?;
    let answer = choose(&home, select)?.status(&home)?;
    let lines = explanation(&home, &answer)?;
    if start.global.json {
        let status: serde_json::Value = serde_json::from_str(&output::status_json(&answer))?;
        output::say(&serde_json::json!({"schema": 1, "status": status, "explanation": lines}).to_string())?;
    } else {
        output::say(&output::status_line(&answer))?;
        output::say_all(lines.iter().map(|line| format!("  {line}")))?;
    }
    Ok(answer.exit())
}

fn explanation(home: &Home, answer: &Answer) -> Result<Vec<String>> {
    let mut lines = vec![format!("file name: {}", answer.filename)];
    match &answer.file {
        Some((facts, Some(until))) => {
            lines.push(format!(
                "published {}, promised until {}",
                output::rfc3339(facts.dates.modified),
                output::rfc3339(*until)
            ));
        }
        Some((facts, None)) => {
            lines.push(format!("published {}, kept for ever", output::rfc3339(facts.dates.modified)));
        }
        None => lines.extend(gone_line(home, answer)?),
    }
    match &answer.job {
        None if answer.file.is_none() => lines.push("nobody has asked for it; `export-queue request` does".to_owned()),
        None => {}
        Some(job) => lines.extend(job_lines(home, answer, job)),
    }
    Ok(lines)
}

fn gone_line(home: &Home, answer: &Answer) -> Result<Option<String>> {
    let Some(facts) = home.cache.find(&answer.filename)? else {
        return Ok(None);
    };
    let why = match home.cache.policy.standing(facts.dates, answer.now) {
        Standing::Ready { .. } => return Ok(Some("a file is there but empty".to_owned())),
        Standing::Expired | Standing::Due => "its time is over; the next sweep deletes it",
        Standing::Strange => "its date is in the future; the next hourly walk ages it",
    };
    Ok(Some(format!("a file of {} is there but not ready: {why}", output::rfc3339(facts.dates.modified))))
}

fn job_lines(home: &Home, answer: &Answer, job: &Job) -> Vec<String> {
    let mut lines = vec![format!(
        "job {} in queue {}, asked for at {}, {} attempts, {} interruptions",
        job.id,
        job.queue,
        output::rfc3339(job.submitted_at),
        job.attempts,
        job.interruptions
    )];
    lines.push(match &job.phase {
        Phase::Queued { .. } => waiting_line(home, answer, job),
        Phase::Started { slot, worker, since, deadline, .. } => format!(
            "started at {} in slot {slot} by process {worker}; its time is up at {}",
            output::rfc3339(*since),
            output::rfc3339(*deadline)
        ),
        Phase::Failed { token: Some(_), .. } => {
            "its processes do not die; the slot is taken until they are gone".to_owned()
        }
        Phase::Failed { at, .. } => format!(
            "failed at {}; `export-queue log` shows its output, a request {}",
            output::rfc3339(*at),
            answer.retry_after.map_or_else(
                || "starts it afresh".to_owned(),
                |left| format!("starts it afresh in {} s", left.as_secs() + 1)
            )
        ),
    });
    lines
}

fn waiting_line(home: &Home, answer: &Answer, job: &Job) -> String {
    let later = match &job.phase {
        Phase::Queued { later: Some((at, _)) } => format!(" until {}", output::rfc3339(*at)),
        _ => String::new(),
    };
    let ahead = answer.ahead.unwrap_or(0);
    match answer.waiting {
        None => format!("{ahead} jobs go before it; the next free worker takes it"),
        Some(Waiting::Paused) => format!(
            "its queue is paused{}; `export-queue resume {}` lets it go on",
            answer.message.as_ref().map_or_else(String::new, |message| format!(": {}", exporter::plain(message))),
            job.queue
        ),
        Some(Waiting::NoFreeSlot) if !home.config.queue.contains_key(&job.queue) => {
            format!("its queue {} is not configured any more", job.queue)
        }
        Some(Waiting::NoFreeSlot) => {
            format!("all slots of its queue are taken; {ahead} jobs go before it")
        }
        Some(Waiting::LowMemory) => "the machine is short of memory; it starts when there is more".to_owned(),
        Some(Waiting::HighLoad) => "the machine is busy; it starts when the load is lower".to_owned(),
        Some(Waiting::LowDisk) => "the disk of the cache is nearly full; it starts when there is room".to_owned(),
        Some(Waiting::BackingOff) => {
            format!("it failed in passing and waits for its next try{later}")
        }
        Some(Waiting::WaitingForBase) => {
            format!("the file it is made from is being made: {}", job.base_filename.as_deref().unwrap_or(""))
        }
        Some(Waiting::NotBefore) => format!("it was asked for later{later}"),
        Some(Waiting::NoDispatcher) => {
            "nobody has dispatched for two minutes: is `export-queue dispatch` in the crontab?".to_owned()
        }
        Some(Waiting::ExporterMissing) => match home.config.format.get(&job.key.format) {
            None => format!("format {} is not configured any more", job.key.format),
            Some(format) => {
                let limits = home.config.format_limits(&job.key.format);
                exporter::obstacle(format, &limits).map_or_else(String::new, |(_, why)| why)
            }
        },
    }
}

pub(super) fn log(start: &Start, select: &Select) -> Result<Exit> {
    let home = start.home()?;
    home.refuse_others()?;
    let chosen = choose(&home, select)?;
    let Some(store) = home.open_to_read()? else {
        return print(start, &chosen.status(&home)?);
    };
    let filename = &chosen.filename;
    let run = store.find(filename)?.and_then(|job| job.last_run);
    let kept = run.map(|token| fs::read(home.layout.log(&token))).and_then(Result::ok);
    let text = match kept {
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        None => match store.history(Some(filename), 1)?.pop() {
            Some(run) => run.detail.unwrap_or_default(),
            None => return print(start, &chosen.status(&home)?),
        },
    };
    for line in text.lines() {
        let line = line.replace('\t', "    ");
        if !output::say(&exporter::plain(line.trim_end_matches('\r')))? {
            break;
        }
    }
    Ok(Exit::Done)
}

/// Opens the queue for changing a row, if there is a queue.
fn open_to_change(home: &Home) -> Result<Box<dyn Store>> {
    home.open_to_ask()
}

pub(super) fn retry(start: &Start, select: &Select) -> Result<Exit> {
    let home = start.home()?;
    let key = key_to_make(&home, select)?;
    let answer = request::status(&home, &key)?;
    if answer.exit() != Exit::Failed {
        return print(start, &answer);
    }
    print(start, &request::request(&home, &key, &wishes_of(&home, answer.job))?)
}

/// A job that is tried again stays what it was.
fn wishes_of(home: &Home, job: Option<Job>) -> Wishes {
    let wishes = Wishes { retry: true, ..Wishes::default() };
    job.map_or(wishes.clone(), |job| Wishes {
        priority: Some(job.priority),
        client: job.client,
        meta: job.meta,
        queue: Some(job.queue).filter(|queue| home.config.queue.contains_key(queue)),
        ..wishes
    })
}

pub(super) fn dismiss(start: &Start, select: &Select) -> Result<Exit> {
    let home = start.home()?;
    let chosen = choose(&home, select)?;
    let dismissed = open_to_change(&home)?.dismiss(&chosen.filename)?;
    let answer = chosen.status(&home)?;
    print(start, &answer)?;
    Ok(if dismissed { Exit::Done } else { answer.exit() })
}

pub(super) fn cancel(start: &Start, select: &Select, client: Option<&str>, force: bool) -> Result<Exit> {
    let home = start.home()?;
    let chosen = choose(&home, select)?;
    let cancelled = open_to_change(&home)?.cancel(&chosen.filename, client, force, clock::now())?;
    let exit = match cancelled {
        Cancelled::Removed | Cancelled::Marked => Exit::Done,
        Cancelled::StillWanted(others) if client.is_some() => {
            start.tell(&format!("{others} others still want it: it goes on"));
            Exit::Done
        }
        Cancelled::StillWanted(others) => {
            return Err(Refusal::not_permitted(format!("{others} others still want it: --force ends it all the same")));
        }
        Cancelled::NotLive => chosen.status(&home)?.exit(),
    };
    print(start, &chosen.status(&home)?)?;
    Ok(exit)
}

pub(super) fn history(
    start: &Start,
    title: Option<String>,
    variant: &Variant,
    mut past: Past,
    since: Option<Duration>,
) -> Result<Exit> {
    let home = start.home()?;
    if let Some(title) = title {
        let key = request::key_of(&home.config, &variant.of(title))?;
        past.filename = Some(request::filename_of(&home, &key));
    } else if variant.font.is_some() || !variant.options.is_empty() {
        return Err(Refusal::usage("--font and --opt say which variant of a title: a title is needed"));
    } else {
        (past.lang, past.format) = (variant.lang.clone(), variant.format.clone());
    }
    past.since = since.map(|since| clock::now() - since);
    let runs = home.open_to_read()?.map(|store| store.runs(&past)).transpose()?.unwrap_or_default();
    if start.global.json {
        output::say_all(runs.iter().map(output::run_json))?;
    } else if !runs.is_empty() {
        let header = ["ended", "outcome", "title", "lang", "format", "took", "size", "memory", "reason"];
        output::say(&output::table(&header, runs.iter().map(output::run_row).collect()))?;
    }
    Ok(Exit::Done)
}
