//! Slow disks: file systems on loop devices whose users, by cgroup, are held to some requests and bytes a second.
//!
//! Only what a process writes in its own name is held back, not what the kernel writes out later. So these file systems write
//! everything at once (`-o sync`, no journal), as disks without a cache behind O_DSYNC would: each write costs requests. The bytes lie in memory.

use crate::Outcome;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Requests and bytes a second of one disk. The kernel holds back what exceeds the tenth of that in a tenth of a second and delays nothing
/// else: what is measured has to be many times as much.
pub const IOPS: u64 = 150;
pub const RATE: u64 = 20_000_000;
const PREFIX: &str = "weir-disks-";
const MEMORY: &str = "/dev/shm";
const CGROUPS: &str = "/sys/fs/cgroup/blkio";

/// Disks; taken away when dropped.
pub struct Disks {
    room: PathBuf,
    made: usize,
}

/// One of them.
pub struct Disk {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What to run those under who use it.
    pub prefix: Vec<OsString>,
}

impl Disks {
    /// None yet; needs root and version 1 of the cgroups for block devices.
    pub fn new() -> Outcome<Disks> {
        if !Path::new(CGROUPS).join("blkio.throttle.write_iops_device").exists() {
            return Err("slow disks need the cgroup controller blkio of version 1 and root".into());
        }
        sweep(|owner| !Path::new("/proc").join(owner.to_string()).exists());
        let room = Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&room)?;
        Ok(Disks { room, made: 0 })
    }

    /// One more, which holds so many bytes and writes everything `at_once` or when it is synced.
    pub fn add(&mut self, size: u64, at_once: bool) -> Outcome<Disk> {
        let name = self.made.to_string();
        self.made += 1;
        let (image, dir) = (self.room.join(format!("{name}.img")), self.room.join(&name));
        fs::File::create(&image)?.set_len(size)?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-O", "^has_journal", &device]))?;
        fs::create_dir(&dir)?;
        let how = if at_once { "sync,noatime" } else { "noatime" };
        run(Command::new("mount").args(["-o", how, &device]).arg(&dir))?;
        let number = run(Command::new("lsblk").args(["--nodeps", "--noheadings", "--output", "MAJ:MIN", &device]))?;
        let group = group(std::process::id(), &name);
        fs::create_dir(&group)?;
        fs::write(group.join("blkio.throttle.write_iops_device"), format!("{number} {IOPS}"))?;
        fs::write(group.join("blkio.throttle.write_bps_device"), format!("{number} {RATE}"))?;
        Ok(Disk { dir, prefix: inside(&group) })
    }
}

/// What to run a program under so that it belongs to a cgroup from its beginning.
pub fn inside(group: &Path) -> Vec<OsString> {
    let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
    vec!["sh".into(), "-c".into(), script.into(), group.into()]
}

impl Drop for Disks {
    fn drop(&mut self) {
        sweep_own();
    }
}

/// Takes away what this process has made.
pub fn sweep_own() {
    sweep(|owner| owner == std::process::id());
}

fn group(owner: u32, name: &str) -> PathBuf {
    Path::new(CGROUPS).join(format!("{PREFIX}{owner}-{name}"))
}

/// Takes away the disks of those processes; what does not work is said, as nobody can do more.
fn sweep(whose: impl Fn(u32) -> bool) {
    let Ok(entries) = fs::read_dir(MEMORY) else { return };
    for room in entries.flatten().map(|entry| entry.path()) {
        let name = room.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.parse().ok());
        if let Some(owner) = owner.filter(|owner| whose(*owner))
            && let Err(error) = take_away(&room, owner)
        {
            eprintln!("threshold: {}: {error}", room.display());
        }
    }
}

fn take_away(room: &Path, owner: u32) -> Outcome<()> {
    for name in (0..).map(|n: usize| n.to_string()) {
        let image = room.join(format!("{name}.img"));
        if !image.exists() {
            break;
        }
        // One that was not made to its end is not mounted, or has no device.
        if room.join(&name).exists() {
            let _ = run(Command::new("umount").arg(room.join(&name)));
        }
        let devices =
            run(Command::new("losetup").args(["--noheadings", "--output", "NAME", "--associated"]).arg(&image))?;
        for device in devices.lines() {
            run(Command::new("losetup").args(["--detach", device.trim()]))?;
        }
        let group = group(owner, &name);
        if group.exists() {
            fs::remove_dir(group)?;
        }
    }
    Ok(fs::remove_dir_all(room)?)
}

/// Runs a program to its end; what it printed.
pub fn run(command: &mut Command) -> Outcome<String> {
    let output = command.output().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
