//! Tests that the reference documentation in `docs/` names every command, configuration key and policy setting.

use clap::CommandFactory;
use std::collections::BTreeSet;

/// Returns the `names` that do not occur in backquotes in `page`.
fn missing(page: &str, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let quoted: BTreeSet<&str> = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    names.into_iter().filter(|name| !quoted.contains(name.as_str())).collect()
}

/// Returns the names of the top-level commands that `weir --help` shows.
fn commands() -> Vec<String> {
    let cli = crate::Cli::command();
    let visible =
        |command: &clap::Command| command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let tops: Vec<clap::Command> = visible(&cli);
    tops.iter().map(|command| command.get_name().to_owned()).collect()
}

/// Returns the keys of a daemon's configuration file, which equal the long names of its options.
fn keys(daemon: &str) -> Vec<String> {
    /// Options that cannot be configuration keys, because they concern only one run of the process.
    const NOT_KEYS: [&str; 4] = ["config", "ready-file", "recover-old-store", "json"];
    let cli = crate::Cli::command();
    let command = cli.find_subcommand(daemon).expect("the daemon is a command");
    let names = command.get_arguments().filter(|option| !option.is_hide_set()).filter_map(|option| option.get_long());
    names
        .filter(|name| !NOT_KEYS.contains(name))
        .map(|name| if name == "iod" { "iods".to_owned() } else { name.replace('-', "_") })
        .collect()
}

#[test]
fn every_command_is_described() {
    let commands = commands();
    assert!(commands.len() > 25, "{commands:?}");
    let page =
        include_str!("../../../docs/commands.md").replace("`mkfs mgr`", "`mkfs`").replace("`tune threshold`", "`tune`");
    assert_eq!(missing(&page, commands), [""; 0]);
}

#[test]
fn every_key_is_described() {
    let page = include_str!("../../../docs/configuration.md").replace("`[[export]]`", "`export`");
    for daemon in ["mgr", "iod"] {
        let keys = keys(daemon);
        assert!(keys.len() >= 8, "{daemon}: {keys:?}");
        assert_eq!(missing(&page, keys), [""; 0], "options of weir {daemon}");
    }
}

#[test]
fn every_policy_part_is_described() {
    let parts = layout::policy::Part::NAMES.iter().map(|name| (*name).to_owned());
    assert_eq!(missing(include_str!("../../../docs/policy.md"), parts), [""; 0]);
}
