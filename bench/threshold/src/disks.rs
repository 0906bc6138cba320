//! Slow disks: file systems on loop devices over files with simulated latency ([`spindle`]).
//!
//! With write-back, no program would wait for the simulated latency. So the file systems write all data synchronously
//! (`-o sync`, no journal), like O_DSYNC on disks without a cache. A write that extends a file costs two disk writes:
//! the bytes and the inode. The disk images are in memory.

use crate::{Outcome, spindle};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: &str = "weir-disks-";
const MEMORY: &str = "/dev/shm";

/// A set of simulated disks; dropping the set deletes the disks.
pub struct Disks {
    room: PathBuf,
    made: usize,
}

impl Disks {
    /// Returns an empty set of disks; needs root. Deletes disks of earlier processes that have ended.
    pub fn new() -> Outcome<Disks> {
        sweep(|owner| !Path::new("/proc").join(owner.to_string()).exists());
        let room = Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&room)?;
        Ok(Disks { room, made: 0 })
    }

    /// Makes a directory in memory, without a slow disk.
    pub fn memory(&self, name: &str) -> Outcome<PathBuf> {
        let dir = self.room.join(name);
        fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// Adds a disk of `size` bytes. If `at_once` is true, the file system of the disk writes all data synchronously;
    /// otherwise it writes data at a sync. Returns the mount point of the disk.
    pub fn add(&mut self, size: u64, at_once: bool) -> Outcome<PathBuf> {
        let name = self.made.to_string();
        self.made += 1;
        let [image, slow, dir] = ["img", "slow", "mnt"].map(|what| self.room.join(format!("{name}.{what}")));
        fs::File::create(&image)?.set_len(size)?;
        let how = ["-q", "-b", "4096", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0"];
        run(Command::new("mkfs.ext4").args(how).arg(&image))?;
        spindle::mount(&image, &slow)?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&slow))?;
        fs::create_dir(&dir)?;
        let how = if at_once { "sync,noatime" } else { "noatime" };
        run(Command::new("mount").args(["-o", how, &device]).arg(&dir))?;
        Ok(dir)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        sweep_own();
    }
}

/// Deletes the disks of this process.
pub fn sweep_own() {
    sweep(|owner| owner == std::process::id());
}

/// Deletes the disks of the processes for which `whose` returns true. Prints errors, because no caller can handle them.
fn sweep(whose: impl Fn(u32) -> bool) {
    let Ok(entries) = fs::read_dir(MEMORY) else { return };
    for room in entries.flatten().map(|entry| entry.path()) {
        let name = room.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.parse().ok());
        if owner.is_some_and(&whose)
            && let Err(error) = take_away(&room)
        {
            eprintln!("threshold: {}: {error}", room.display());
        }
    }
}

fn take_away(room: &Path) -> Outcome<()> {
    for name in 0.. {
        let [image, slow, dir] = ["img", "slow", "mnt"].map(|what| room.join(format!("{name}.{what}")));
        if !image.exists() {
            break;
        }
        // A disk whose creation failed may have no mount or no loop device, so skip what does not exist.
        if dir.exists() {
            let _ = run(Command::new("umount").arg(dir));
        }
        // Do not look the loop device up by its backing file, because the process that serves this file may have ended.
        let devices = run(Command::new("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]))?;
        let file = slow.to_string_lossy();
        for device in devices.lines().filter_map(|line| line.split_once(' ').filter(|(_, of)| of.trim() == file)) {
            run(Command::new("losetup").args(["--detach", device.0]))?;
        }
        let _ = run(Command::new("umount").args(["--lazy"]).arg(slow));
    }
    Ok(fs::remove_dir_all(room)?)
}

/// Runs a program until it exits; returns the output of the program.
pub fn run(command: &mut Command) -> Outcome<String> {
    let output = command.output().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
