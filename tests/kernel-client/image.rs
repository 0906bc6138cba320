//! The image that a guest boots: the kernel of a Debian package, and a small root file system with busybox and the NFS
//! tools.
//!
//! The root file system is an initramfs, so the guest has all of it in memory. This module downloads and unpacks
//! packages, but never installs them. It stores the image below `target/`, and rebuilds it when the wanted kernel,
//! `INIT` or this file changes.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The package of the default kernel, which is the newest kernel of the host's own release. `WEIR_TEST_KERNEL` selects
/// another kernel: names of packages or paths of package files, separated by commas.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Prefixes of the names of kernel packages. A kernel package either contains everything, or depends on packages with
/// the kernel, its modules, and the lists of modules.
const KERNEL_PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];
/// The packages whose files the root file system contains, besides libraries.
const PROGRAMS: [&str; 7] = ["attr", "busybox-static", "kmod", "nfs-common", "perl-base", "util-linux", "xfsprogs"];
/// Name prefixes of libraries on which the packages in `PROGRAMS` depend, but which the programs that the tests run do
/// not need.
const UNUSED_LIBRARIES: [&str; 3] = ["libicu", "libperl", "libpython"];
/// Prefixes of the paths of package files that the root file system omits, because no test needs them.
const UNUSED: &[&str] = &[
    "usr/lib/python3",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/sbin/mkfs.xfs",
    "usr/sbin/xfs_db",
    "usr/sbin/xfs_repair",
    "usr/sbin/xfs_scrub",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl5",
];
/// The kernel modules in the root file system, as folders and files below `kernel/` of the module tree.
const MODULES: &[&str] = &[
    "crypto",
    "drivers/block",
    "drivers/char",
    "drivers/net/net_failover.ko",
    "drivers/net/virtio_net.ko",
    "drivers/virtio",
    "fs/fscache",
    "fs/lockd",
    "fs/netfs",
    "fs/nfs",
    "fs/nfs_common",
    "lib",
    "net/core",
    "net/dns_resolver",
    "net/sunrpc",
];
/// The script that the kernel of a guest runs first. The script sets the guest up, and then runs the scripts of the
/// host.
const INIT: &str = include_str!("init.sh");
/// Maximum number of attempts to download one package.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(5);

/// The paths of the files that QEMU boots.
#[derive(Clone, Debug)]
pub struct Image {
    /// The path of the compressed kernel.
    pub kernel: PathBuf,
    /// The path of the root file system, an initramfs.
    pub root: PathBuf,
}

impl Image {
    /// Returns the image. Makes the image first if it does not exist.
    pub fn get() -> Image {
        let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-client");
        fs::create_dir_all(&store).expect("a folder for images");
        // Hold a lock, so that two concurrent test runs make only one image.
        let lock = File::create(store.join("lock")).expect("a lock");
        lock.lock().expect("the lock");
        let mut recipe = DefaultHasher::new();
        (kernel_wanted(), INIT, include_str!("image.rs")).hash(&mut recipe);
        let dir = store.join(format!("{:016x}", recipe.finish()));
        if !dir.join("done").exists() {
            eprintln!("making the image of a guest in {}", dir.display());
            let _ = fs::remove_dir_all(&dir);
            make(&dir).unwrap_or_else(|e| panic!("the image of a guest cannot be made: {e}"));
            File::create(dir.join("done")).expect("a mark");
        }
        Image { kernel: dir.join("kernel"), root: dir.join("root.cpio") }
    }
}

fn kernel_wanted() -> String {
    std::env::var("WEIR_TEST_KERNEL").unwrap_or_else(|_| KERNEL.to_owned())
}

fn is_of_kernel(package: &str) -> bool {
    KERNEL_PARTS.iter().any(|part| package.starts_with(part))
}

fn make(dir: &Path) -> io::Result<()> {
    let (packages, tree, unpacked) = (dir.join("packages"), dir.join("tree"), dir.join("unpacked"));
    fs::create_dir_all(&packages)?;
    let kernel = kernel_wanted();
    let (files, names): (Vec<&str>, Vec<&str>) = kernel.split(',').partition(|given| given.ends_with(".deb"));
    let asked = [&PROGRAMS[..1], &names].concat();
    let known = || output(Command::new("apt-cache").args(["show", "--no-all-versions"]).args(&asked)).is_ok();
    if !known() {
        repeatedly(|| run(Command::new("apt-get").args(["-qq", "update"])))?;
    }
    let used = |name: &String| name.starts_with("lib") && !UNUSED_LIBRARIES.iter().any(|no| name.starts_with(no));
    let libraries = depends(&PROGRAMS)?.into_iter().filter(used);
    let mut wanted = PROGRAMS.iter().map(|name| (*name).to_owned()).chain(libraries).collect::<Vec<_>>();
    for (i, file) in files.iter().enumerate() {
        fs::copy(file, packages.join(format!("{}given-{i}.deb", KERNEL_PARTS[0])))?;
    }
    if !names.is_empty() {
        // A package without a version in its name depends only on the package of the newest kernel, which depends on
        // the packages with the kernel's parts. So also take the dependencies of dependencies.
        wanted.extend(depends(&names)?.into_iter().filter(|name| is_of_kernel(name)));
    }
    repeatedly(|| run(Command::new("apt-get").args(["-qq", "download"]).args(&wanted).current_dir(&packages)))?;
    for merged in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(tree.join("usr").join(merged))?;
        std::os::unix::fs::symlink(format!("usr/{merged}"), tree.join(merged))?;
    }
    for folder in ["dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "var/lib/nfs"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    fs::create_dir_all(unpacked.join("usr/lib"))?;
    std::os::unix::fs::symlink("usr/lib", unpacked.join("lib"))?;
    for package in fs::read_dir(&packages)? {
        let package = package?;
        let into = if is_of_kernel(&package.file_name().to_string_lossy()) { &unpacked } else { &tree };
        unpack(&package.path(), into)?;
    }
    let release = the_only(&unpacked.join("lib/modules"))?;
    let places =
        [format!("boot/vmlinuz-{release}"), format!("lib/modules/{release}/vmlinuz")].map(|path| unpacked.join(path));
    let there = places.iter().find(|path| path.exists());
    fs::rename(there.ok_or_else(|| io::Error::other("no kernel in its packages"))?, dir.join("kernel"))?;
    modules(&unpacked, &tree, &release)?;
    let unused = UNUSED.iter().map(|path| format!("{path}*")).collect::<Vec<_>>().join(" ");
    run(Command::new("sh").args(["-c", &format!("rm -rf {unused}")]).current_dir(&tree))?;
    for (file, content) in [
        ("init", INIT),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n"),
        ("etc/group", "root:x:0:\nalice:x:1000:\nbob:x:1001:\n"),
        ("etc/protocols", "tcp 6 TCP\nudp 17 UDP\n"),
        ("etc/netconfig", "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\n"),
    ] {
        fs::write(tree.join(file), content)?;
    }
    fs::set_permissions(tree.join("init"), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    std::os::unix::fs::symlink("/proc/mounts", tree.join("etc/mtab"))?;
    // Do not compress the archive: without hardware virtualization, a guest needs more time to decompress the archive
    // than to read it.
    let archive = format!("find . | cpio --quiet -o -H newc > {}", dir.join("root.cpio").display());
    run(Command::new("sh").args(["-c", &archive]).current_dir(&tree))?;
    [packages, tree, unpacked].iter().try_for_each(fs::remove_dir_all)
}

/// Copies the kernel modules that a guest may need, and creates the list of dependencies between these modules.
fn modules(unpacked: &Path, tree: &Path, release: &str) -> io::Result<()> {
    let (from, to) = (unpacked.join("lib/modules").join(release), tree.join("lib/modules").join(release));
    for wanted in MODULES.iter().map(|module| Path::new("kernel").join(module)) {
        let parent = to.join(wanted.parent().unwrap_or(Path::new("")));
        fs::create_dir_all(&parent)?;
        for there in [from.join(&wanted), from.join(&wanted).with_added_extension("xz")] {
            if there.exists() {
                run(Command::new("cp").arg("-a").arg(there).arg(&parent))?;
            }
        }
    }
    // Decompress the modules, because newer packages compress them and not every tool of the guest can read compressed
    // modules.
    let plain = "find . -name '*.ko.xz' -exec \"$0\" unxz {} +";
    run(Command::new("sh").args(["-c", plain]).arg(tree.join("usr/bin/busybox")).current_dir(&to))?;
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        // Packages that `WEIR_TEST_KERNEL` names may not contain the lists of modules. Without these lists, the guest
        // reports built-in modules as missing.
        if from.join(list).exists() {
            fs::copy(from.join(list), to.join(list))?;
        }
    }
    // Run depmod from the unpacked packages, because the host may not have this tool.
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    let mut depmod = Command::new(tree.join("usr/lib64/ld-linux-x86-64.so.2"));
    depmod.arg("--library-path").arg(libraries).args(["--argv0", "depmod"]).arg(tree.join("usr/bin/kmod"));
    run(depmod.arg("-b").arg(tree).arg(release))
}

/// Unpacks a package into a tree whose `/bin` and `/lib` are symlinks to directories in `/usr`.
fn unpack(package: &Path, tree: &Path) -> io::Result<()> {
    let mut archive = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn()?;
    let tar = archive.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    let done = run(Command::new("tar").args(["-x", "--keep-directory-symlink", "-C"]).arg(tree).stdin(tar));
    archive.wait()?;
    done
}

/// Returns the names of the given packages and of all their dependencies.
fn depends(packages: &[&str]) -> io::Result<Vec<String>> {
    let no =
        ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"].map(|kind| format!("--no-{kind}"));
    let listed = output(Command::new("apt-cache").args(["depends", "--recurse"]).args(no).args(packages))?;
    let mut names: Vec<String> = listed
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric()) && !line.contains(':'))
        .map(|line| line.trim().to_owned())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn the_only(dir: &Path) -> io::Result<String> {
    let entry = fs::read_dir(dir)?.next().ok_or_else(|| io::Error::other("an empty folder"))??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

fn repeatedly(work: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match work() {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("{error}; once more in {} s", PAUSE.as_secs()),
        }
        std::thread::sleep(PAUSE);
    }
    work()
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{command:?}: {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}
