//! Commands that set a queue up and look whether it is right.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Start;
use crate::bind::{self, Home};
use crate::check;
use crate::cli::{ConfigCommand, MigrateCommand};
use crate::config;
use crate::exit::{Exit, Refusal};
use crate::migrate::{self, Done};
use crate::output;
use crate::store;

pub(super) fn init(start: &Start, adopt: bool, user: Option<&str>, group: Option<&str>) -> Result<Exit> {
    let path = super::path_in_force(start);
    if !path.exists() {
        write_config(&path, group)?;
        start.tell(&format!("wrote {}", path.display()));
    }
    let path = std::path::absolute(&path).unwrap_or(path);
    let loaded =
        config::load(Some(&path), &start.env).map_err(|error| Refusal::config(super::one_line(&error.to_string())))?;
    if rustix::process::geteuid().is_root() {
        make_as_root(&loaded.config, user, group)?;
    } else if user.is_some() {
        return Err(Refusal::not_permitted("only root may set a queue up for another user"));
    }
    bind::become_owner(&loaded.config)?;
    let home = Home::of(loaded)?;
    if adopt {
        for line in home.adopt()? {
            start.tell(&line);
        }
    } else {
        home.set_up()?;
        home.open_as_owner()?;
    }
    say_next(start, &home, &path);
    Ok(Exit::Done)
}

fn say_next(start: &Start, home: &Home, path: &Path) {
    let owner = bind::user_name(rustix::process::geteuid().as_raw());
    start.tell(&format!("the queue in {} belongs to {owner}", home.layout.state.display()));
    if home.config.format.is_empty() {
        start.tell(&format!(
            "next: name a format in {} (examples are in it), then run `export-queue check`",
            path.display()
        ));
    } else {
        start.tell("next: run `export-queue check`");
    }
    start.tell(&format!(
        "then, in the crontab of {owner}: * * * * * export-queue --config {} dispatch --for 60s",
        path.display()
    ));
}

/// Writes a commented configuration; one that is there is never touched.
fn write_config(path: &Path, group: Option<&str>) -> Result<()> {
    let (state, cache) = default_places(path);
    let template = include_str!("../config/init.toml");
    let mut text =
        template.replace("{state_dir}", &state.to_string_lossy()).replace("{cache_dir}", &cache.to_string_lossy());
    if let Some(group) = group {
        text = text.replace("# group = \"www-data\" ", &format!("group = \"{group}\" "));
    }
    let write = || -> std::io::Result<()> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| Refusal::config(format!("cannot write {}: {error}", path.display())))
}

/// Where a new queue lies: the system's places for root, the user's own for others.
fn default_places(config: &Path) -> (PathBuf, PathBuf) {
    if rustix::process::geteuid().is_root() {
        return ("/var/lib/export-queue".into(), "/var/cache/export-queue".into());
    }
    let home =
        std::env::var_os("HOME").map_or_else(|| config.parent().unwrap_or(Path::new("/")).to_owned(), PathBuf::from);
    let place = |variable: &str, usual: &str| {
        let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        named.unwrap_or_else(|| home.join(usual)).join("export-queue")
    };
    (place("XDG_STATE_HOME", ".local/state"), place("XDG_CACHE_HOME", ".cache"))
}

/// Root makes the directories that the owner could not make, and gives them to the owner.
fn make_as_root(config: &config::Config, user: Option<&str>, group: Option<&str>) -> Result<()> {
    let owner = match user {
        None => fs::metadata(&config.state_dir).ok().map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)),
        Some(name) => {
            let found = nix::unistd::User::from_name(name).ok().flatten();
            Some(found.ok_or_else(|| Refusal::usage(format!("there is no user {name}")))?.uid.as_raw())
        }
    };
    let group = group.or(config.group.as_deref());
    let gid = match group {
        None => None,
        Some(name) => {
            let found = nix::unistd::Group::from_name(name).ok().flatten();
            Some(found.ok_or_else(|| Refusal::usage(format!("there is no group {name}")))?.gid.as_raw())
        }
    };
    if let (Some(name), Ok(meta)) = (user, fs::metadata(&config.state_dir)) {
        let there = std::os::unix::fs::MetadataExt::uid(&meta);
        if Some(there) != owner {
            let (dir, there) = (config.state_dir.display(), bind::user_name(there));
            return Err(Refusal::usage(format!(
                "{dir} belongs to {there} already, not to {name}: chown it, or leave --user out"
            )));
        }
    }
    for (dir, mode) in [(&config.state_dir, bind::STATE_MODE), (&config.cache.dir, 0o2750)] {
        if dir.exists() {
            continue;
        }
        let make = || -> std::io::Result<()> {
            fs::create_dir_all(dir)?;
            chown(dir, owner, gid)?;
            fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(mode))
        };
        make().with_context(|| format!("making {}", dir.display()))?;
    }
    Ok(())
}

pub(super) fn config(start: &Start, command: ConfigCommand) -> Result<Exit> {
    let ConfigCommand::Show { origin } = command;
    let loaded = start.load()?;
    if start.global.json {
        for (key, value, origin) in config::Origins::of(&loaded).rows(&loaded.config) {
            output::say(&serde_json::json!({"schema": 1, "key": key, "value": value, "origin": origin}).to_string())?;
        }
    } else {
        output::say(config::show(&loaded, origin).trim_end())?;
    }
    Ok(Exit::Done)
}

pub(super) fn check(start: &Start) -> Result<Exit> {
    let mut report = check::Report::default();
    let loaded = match start.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            report.fail("configuration", &error);
            return print_check(start, &report);
        }
    };
    check::before_change_of_user(&loaded, &mut report);
    bind::become_owner(&loaded.config)?;
    let home = Home::of(loaded)?;
    check::check(&home, &mut report);
    print_check(start, &report)
}

fn print_check(start: &Start, report: &check::Report) -> Result<Exit> {
    for line in &report.lines {
        let text = if start.global.json {
            serde_json::json!({"schema": 1, "result": line.grade.text(), "about": line.about, "message": line.message})
                .to_string()
        } else {
            format!("{:4}  {}: {}", line.grade.text(), line.about, crate::exporter::plain(&line.message))
        };
        output::say(&text)?;
    }
    Ok(report.exit())
}

pub(super) fn migrate(
    start: &Start,
    to: Option<&str>,
    wait: Duration,
    command: Option<MigrateCommand>,
) -> Result<Exit> {
    match (to, command) {
        (Some(to), _) => move_to(start, to, wait),
        (None, Some(MigrateCommand::Sql)) => output::say(bind::shared_schema()?.1.trim_end()).map(|_| Exit::Done),
        (None, Some(MigrateCommand::Status)) => schema_status(start),
        (None, None) => Err(Refusal::usage("say where to with `--to URL`, or what: `status`, `sql`")),
    }
}

fn move_to(start: &Start, to: &str, wait: Duration) -> Result<Exit> {
    let home = start.home()?;
    let place = home.name_of(bind::database_of(to)?);
    let Done::Moved(moved) = migrate::migrate(&home, to, wait, &mut |message| start.tell(message))? else {
        start.tell(&format!("the move was taken back: the queue is in {place}"));
        return Ok(Exit::Done);
    };
    if start.global.json {
        let rows: serde_json::Map<_, _> =
            moved.iter().map(|(table, rows)| ((*table).to_owned(), (*rows).into())).collect();
        let object = serde_json::json!({"schema": 1, "from": home.engine_name(), "to": place, "moved": rows});
        output::say(&object.to_string())?;
    } else {
        output::say_all(moved.iter().map(|(table, rows)| format!("{table:<10}  {rows}")))?;
    }
    let mend = if to == "sqlite" { "take `database` out of" } else { "set `database` in" };
    let path = super::path_in_force(start);
    start.tell(&format!("the queue is in {place} now: {mend} {}", path.display()));
    Ok(Exit::Done)
}

fn schema_status(start: &Start) -> Result<Exit> {
    let home = start.home()?;
    let (engine, newest) =
        if home.is_shared() { ("postgres", bind::shared_schema()?.0) } else { ("sqlite", store::migrate::NEWEST) };
    let (found, mark) = home.schema()?.map_or((None, None), |(found, mark)| (Some(found), mark));
    let place = home.engine_name();
    let moved = mark.map(|mark| (mark.stage.text(), mark.other));
    if start.global.json {
        let (stage, other) = moved.unzip();
        let object = serde_json::json!({
            "schema": 1, "engine": engine, "database": place, "found": found, "program": newest, "move": stage,
            "other": other,
        });
        return output::say(&object.to_string()).map(|_| Exit::Done);
    }
    let found = found.map_or_else(|| "holds no queue".to_owned(), |found| format!("schema {found}"));
    output::say(&format!("{engine}  {place}  {found}, this program writes {newest}"))?;
    if let Some((stage, other)) = moved {
        output::say(&format!("last move: {stage}, the other database is {other}"))?;
    }
    Ok(Exit::Done)
}
