//! `cargo xtask bench`: runs or lists the experiments in `bench/`, one folder for each experiment.

mod page;
mod plot;

use crate::apt;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(after_help = "An experiment is a folder of bench/ with a Cargo package or an executable file `run`. A file \
    `needs` names programs and the Debian packages that have them, one pair per line; missing ones are installed. The option \
    `--record` of every experiment writes its results to bench/results/ (bench/README.md).")]
pub struct Options {
    /// The experiment to run; without a name, lists all experiments
    name: Option<String>,
    /// Generate docs/benchmarks.md and its plots from the records in bench/results/
    #[arg(long, conflicts_with = "name")]
    page: bool,
    /// Options that are passed to the experiment; every experiment has --record
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs an experiment from its folder, or lists all experiments.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    if options.page {
        return page::write(root);
    }
    let folder = root.join("bench");
    let known = experiments(&folder)?;
    let Some(name) = &options.name else {
        known.iter().for_each(|name| println!("{name}"));
        return Ok(());
    };
    if !known.contains(name) {
        return Err(format!("no experiment {name}; there are: {}", known.join(", ")).into());
    }
    let folder = folder.join(name);
    if let Ok(needs) = fs::read_to_string(folder.join("needs")) {
        apt::ensure(&needs)?;
    }
    let mut command = if folder.join("Cargo.toml").exists() {
        let mut cargo = crate::cargo();
        cargo.args(["run", "--quiet", "--release", "--manifest-path"]).arg(folder.join("Cargo.toml")).arg("--");
        cargo
    } else {
        Command::new(folder.join("run"))
    };
    let status = command.args(&options.args).current_dir(&folder).status()?;
    if status.success() { Ok(()) } else { Err(format!("experiment {name} failed: {status}").into()) }
}

/// Returns the sorted names of the folders in `bench/` that contain an experiment.
fn experiments(folder: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    if !folder.exists() {
        return Ok(names);
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if ["src/main.rs", "run"].iter().any(|file| entry.path().join(file).is_file()) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_without_an_experiment_are_not_listed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b/src", "a", "library/src"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        for file in ["a/run", "b/src/main.rs", "library/src/lib.rs"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        assert_eq!(experiments(root.path()).unwrap(), ["a", "b"]);
        assert!(experiments(&root.path().join("absent")).unwrap().is_empty());
    }
}
