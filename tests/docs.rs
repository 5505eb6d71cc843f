//! The manual names everything that a caller or an operator can name.

use std::process::{Command, Stdio};

use crate::harness::{PROGRAM, call};

const README: &str = include_str!("../README.md");

/// The commands of the interface that this version has.
const COMMANDS: &[&str] = &[
    "init",
    "check",
    "config show",
    "request",
    "status",
    "fetch",
    "dispatch",
    "sweep",
    "list",
    "queues",
    "deliveries",
    "explain",
    "log",
    "retry",
    "dismiss",
    "cancel",
    "history",
    "purge",
    "pause",
    "resume",
    "stats",
    "health",
    "metrics",
    "watch",
    "migrate status",
    "migrate sql",
    "completions",
    "man",
];

/// The keys of the configuration, by section.
const KEYS: &[(&str, &[&str])] = &[
    ("", &["state_dir", "group", "database"]),
    ("cache", &["dir", "max_age", "ttl_from", "serve_grace", "max_bytes", "mode"]),
    ("defaults", &["lang", "font", "format", "title_rules", "title_first_letter"]),
    ("allow", &["languages", "fonts"]),
    ("options", &["values", "default"]),
    ("alias", &[]),
    ("deny", &["title", "message"]),
    (
        "queue",
        &[
            "slots",
            "max_running",
            "max_queued",
            "max_queued_per_client",
            "min_free_memory",
            "max_load",
            "max_pressure",
            "min_pages",
            "min_free_disk",
            "work_window",
        ],
    ),
    ("bypass", &["max_pages", "queue"]),
    (
        "limits",
        &[
            "timeout",
            "kill_grace",
            "max_memory",
            "max_output",
            "max_log",
            "max_processes",
            "max_cpu",
            "nice",
            "no_network",
            "read_only",
        ],
    ),
    ("failures", &["hold", "ttl", "max", "max_interruptions", "max_stops"]),
    ("history", &["keep", "max_rows"]),
    ("node", &["lease"]),
    (
        "format",
        &[
            "command",
            "verify",
            "extension",
            "check",
            "queue",
            "backoff",
            "transient_exit",
            "transient_output",
            "accept_exit",
            "retry_timeouts",
            "env",
            "env_file",
            "precheck",
            "fingerprint",
            "base",
            "produces",
        ],
    ),
    ("notify", &["name", "on", "command", "timeout", "url", "secret_file", "email"]),
];

/// The exit codes.
const CODES: &[&str] = &["0", "1", "2", "3", "4", "5", "6", "69", "75", "77", "78"];

/// Words in code marks or code blocks of the manual.
fn code_words() -> Vec<String> {
    let mut is_block = false;
    let mut code = String::new();
    for line in README.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block || line.starts_with("    ") {
            code.extend([line, "\n"]);
        } else {
            for span in line.split('`').skip(1).step_by(2) {
                code.extend([span, "\n"]);
            }
        }
    }
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    code.split(|letter| !is_part(letter)).map(str::to_owned).collect()
}

#[test]
fn every_command_stands_in_the_manual() {
    let words = code_words();
    let lacking: Vec<_> = COMMANDS
        .iter()
        .filter(|command| !command.split(' ').all(|word| words.iter().any(|found| found == word)))
        .collect();
    assert!(lacking.is_empty(), "README.md does not name {lacking:?}");
}

#[test]
fn every_key_of_the_configuration_stands_in_the_manual() {
    let words = code_words();
    let has = |name: &str| name.is_empty() || words.iter().any(|found| found == name);
    let mut lacking = Vec::new();
    for (section, keys) in KEYS {
        lacking.extend((!has(section)).then(|| format!("[{section}]")));
        lacking.extend(keys.iter().filter(|key| !has(key)).map(|key| format!("{section}.{key}")));
    }
    assert!(lacking.is_empty(), "README.md does not name {lacking:?}");
}

#[test]
fn every_key_that_is_in_force_by_default_stands_in_the_manual() {
    let words = code_words();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("config.toml");
    std::fs::write(
        &path,
        "state_dir = \"state\"\n[cache]\ndir = \"cache\"\n[format.epub]\ncommand = [\"true\", \"{output}\"]\n",
    )
    .expect("a configuration");
    let mut command = Command::new(PROGRAM);
    let said = call(command.arg("--json").arg("--config").arg(&path).args(["config", "show"]).stdin(Stdio::null()));
    for row in said.code(0).lines() {
        let key = row["key"].as_str().expect("a key").to_owned();
        let name = key.rsplit('.').next().expect("a name").to_owned();
        assert!(words.contains(&name), "README.md does not name {key}");
    }
}

#[test]
fn every_exit_code_stands_in_the_manual() {
    let cells: Vec<&str> =
        README.lines().flat_map(|line| line.split('|')).map(|cell| cell.trim().trim_matches('`')).collect();
    let lacking: Vec<_> = CODES.iter().filter(|code| !cells.contains(code)).collect();
    assert!(lacking.is_empty(), "README.md has no table with {lacking:?}");
}

#[test]
fn every_command_of_the_program_stands_in_the_manual() {
    let words = code_words();
    let help = call(Command::new(PROGRAM).arg("--help").stdin(Stdio::null())).code(0).out;
    let (_, commands) = help.split_once("Commands:\n").expect("a list of commands");
    let names = commands.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let lacking: Vec<_> = names.filter(|name| !words.iter().any(|word| word == name)).collect();
    assert!(lacking.is_empty(), "README.md does not name {lacking:?}");
}

#[test]
fn every_test_in_the_table_of_public_reports_exists() {
    let rows = include_str!("CASES.md").lines().filter(|line| line.starts_with("| ") && !line.starts_with("| row"));
    let mut rows_seen = std::collections::BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        rows_seen.insert(cells[1].parse::<u32>().expect("a number of a row"));
        for name in cells[3].split('`').skip(1).step_by(2) {
            let (file, name) = name.split_once("::").unwrap_or_else(|| panic!("{name} names no file"));
            let path = format!("{}/tests/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(text.contains(&format!("fn {name}(")), "{file}.rs has no test {name}");
        }
    }
    assert!(rows_seen.len() >= 57, "{rows_seen:?}");
}
