//! RFC texts that contain the XDR descriptions, from a directory or from a Debian package that this code unpacks
//! without installing it.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGE: &str = "doc-rfc-std-proposed";
const MIRROR: &str = "http://deb.debian.org/debian";
const SUITE: &str = "bookworm";

/// Returns the XDR description in one RFC: the lines of the RFC that begin with `///`, without this mark.
pub fn description(dir: &Path, rfc: u32) -> Result<String, Box<dyn Error>> {
    Ok(marked_lines(&read(dir, rfc)?))
}

/// Returns the lines of `text` that begin with `///`, without this mark.
fn marked_lines(text: &str) -> String {
    let marked = text.lines().filter_map(|line| line.trim_start().strip_prefix("///"));
    marked.map(|line| line.strip_prefix(' ').unwrap_or(line)).fold(String::new(), |all, line| all + line + "\n")
}

fn read(dir: &Path, rfc: u32) -> Result<String, Box<dyn Error>> {
    let plain = dir.join(format!("rfc{rfc}.txt"));
    if plain.exists() {
        return Ok(fs::read_to_string(plain)?);
    }
    let packed = dir.join(format!("rfc{rfc}.txt.gz"));
    if !packed.exists() {
        return Err(format!("neither rfc{rfc}.txt nor rfc{rfc}.txt.gz is in {}", dir.display()).into());
    }
    let out = Command::new("gzip").arg("-dc").arg(&packed).stderr(Stdio::inherit()).output()?;
    if !out.status.success() {
        return Err(format!("gzip cannot read {}", packed.display()).into());
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// Downloads Debian's package of proposed standards into `scratch` and unpacks it there.
///
/// The package is in the non-free component, which few machines have enabled. So apt runs with a separate configuration
/// in `scratch`. This apt run installs nothing and does not change the machine's package lists.
pub fn download(scratch: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let sources = scratch.join("sources.list");
    fs::write(&sources, format!("deb {MIRROR} {SUITE} non-free\n"))?;
    let (lists, cache, unpacked) = (scratch.join("lists"), scratch.join("cache"), scratch.join("unpacked"));
    fs::create_dir_all(lists.join("partial"))?;
    fs::create_dir_all(cache.join("archives/partial"))?;
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(scratch).arg("-qq");
        for (key, value) in [("Dir::Etc::sourcelist", &sources), ("Dir::State::lists", &lists), ("Dir::Cache", &cache)]
        {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        command.args(["-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root"]).args(args);
        run(&mut command)
    };
    apt(&["update"])?;
    apt(&["download", PACKAGE])?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|e| e == "deb");
    let package = fs::read_dir(scratch)?.filter_map(|e| Some(e.ok()?.path())).find(is_package);
    let package = package.ok_or("apt-get download left no package behind")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
    Ok(unpacked.join("usr/share/doc/RFC/proposed-standard"))
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status().map_err(|e| format!("cannot start {:?}: {e}", command.get_program()))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::marked_lines;

    #[test]
    fn only_marked_lines_count() {
        let text = "prose\n   /// struct a {\n\x0cRFC 1  page\n   ///\n///   int b; };\n   grep '///' x\n";
        assert_eq!(marked_lines(text), "struct a {\n\n  int b; };\n");
    }
}
