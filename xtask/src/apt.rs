//! Installation of the Debian packages that an experiment needs, if their programs are missing.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(10);

/// Installs missing programs. Each line of `needs` has the name of a program and the Debian package that contains it,
/// such as `tc iproute2`.
///
/// # Errors
/// A line of `needs` has no package, or apt cannot install a package in several attempts.
pub fn ensure(needs: &str) -> Result<(), Box<dyn Error>> {
    let missing: Vec<&str> = needs
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(' ').ok_or_else(|| format!("{line:?} is not a program and its package")))
        .filter_map(|need| match need {
            Ok((program, _)) if exists(program) => None,
            Ok((_, package)) => Some(Ok(package.trim())),
            Err(error) => Some(Err(error)),
        })
        .collect::<Result<_, _>>()?;
    if missing.is_empty() {
        return Ok(());
    }
    println!("==> apt-get install {}", missing.join(" "));
    for attempt in 1..=ATTEMPTS {
        if apt(&["update"]) && apt(&[&["install", "--no-install-recommends"], &missing[..]].concat()) {
            return Ok(());
        }
        if attempt < ATTEMPTS {
            println!("==> attempt {attempt} failed, next one in {} s", PAUSE.as_secs());
            sleep(PAUSE);
        }
    }
    Err(format!("apt-get could not install {}", missing.join(" ")).into())
}

fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).to_path_buf());
    std::env::split_paths(&path).chain(system).any(|dir| dir.join(program).is_file())
}

fn apt(args: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-y"]).args(args);
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::{ensure, exists};

    #[test]
    fn what_is_there_is_not_installed() {
        assert!(exists("sh"));
        assert!(!exists("no-such-program-anywhere"));
        assert!(ensure("# comment\n\nsh dash\n").is_ok());
        assert!(ensure("lonely\n").is_err());
    }
}
