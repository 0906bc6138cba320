//! Messages between a guest and the servers. A relay between them stores, delays, repeats, truncates or drops these
//! messages.

use crate::guest::{Guest, full};
use crate::relay::{From, Relay};
use crate::servers;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};
use wire::nfs4::{CB_COMPOUND4args, CB_COMPOUND4res, COMPOUND4args, COMPOUND4res, NFS4_PROGRAM};
use wire::rpc::{AcceptStat, Message, ReplyStat, decode_message};
use xdr::{Reader, Xdr};

/// Decodes a message, encodes it again, and compares the bytes. Returns the kind of the message (call, callback or
/// reply) and its NFS operations.
fn again(from: From, record: &[u8]) -> Option<String> {
    let mut input = Reader::new(Bytes::copy_from_slice(record));
    let message = decode_message(&mut input).expect("an RPC message");
    let body = input.rest();
    let same = |bytes: Bytes| assert_eq!(bytes, body, "not the same again");
    let debug = match (message, from) {
        (Message::Call(call), From::Client) if call.program == NFS4_PROGRAM && call.procedure == 1 => {
            let args = COMPOUND4args::from_bytes(&body).expect("a COMPOUND");
            same(args.to_bytes());
            format!("call {}", args.argarray.iter().map(|op| name(&format!("{op:?}"))).collect::<Vec<_>>().join(" "))
        }
        (Message::Call(call), From::Server) if call.procedure == 1 => {
            let args = CB_COMPOUND4args::from_bytes(&body).expect("a CB_COMPOUND");
            same(args.to_bytes());
            format!(
                "callback {}",
                args.argarray.iter().map(|op| name(&format!("{op:?}"))).collect::<Vec<_>>().join(" ")
            )
        }
        (Message::Reply(reply), from) => {
            if !matches!(reply.stat, ReplyStat::Accepted { stat: AcceptStat::Success, .. }) || body.is_empty() {
                return None;
            }
            if from == From::Server {
                let res = COMPOUND4res::from_bytes(&body).expect("the results of a COMPOUND");
                same(res.to_bytes());
                let ops = res.resarray.iter().map(|op| name(&format!("{op:?}"))).collect::<Vec<_>>().join(" ");
                format!("reply {:?} {ops}", res.status)
            } else {
                let res = CB_COMPOUND4res::from_bytes(&body).expect("the results of a CB_COMPOUND");
                same(res.to_bytes());
                let ops = res.resarray.iter().map(|op| name(&format!("{op:?}"))).collect::<Vec<_>>().join(" ");
                format!("callback reply {:?} {ops}", res.status)
            }
        }
        _ => return None,
    };
    Some(debug)
}

/// Returns the name of an NFS operation from its debug output.
fn name(shown: &str) -> String {
    let end = shown.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(shown.len());
    shown[..end].trim_start_matches("OP_").to_owned()
}

/// A script that makes some calls of each kind of file operation that programs use.
const WORK: &str = "
cd /mnt
echo hello > f; cat f > /dev/null; dd if=/dev/urandom of=large bs=64k count=40 2>/dev/null; sync
echo 3 > /proc/sys/vm/drop_caches; md5sum large > /dev/null; dd if=large of=/dev/null bs=64k iflag=direct 2>/dev/null
mkdir -p d/e; ln f d/hard; ln -s ../f d/e/soft; readlink d/e/soft > /dev/null; mknod d/fifo p
mv d/hard d/e/moved; ls -lR . > /dev/null; chmod 600 f; touch -d '2001-02-03 04:05:06' f; truncate -s 100000 large
/usr/bin/fallocate -p -o 4096 -l 8192 large; flock f true; df . > /dev/null; cp large copy; rm -r d copy
cat nothing 2>/dev/null
cd /
true";

#[test]
fn captured_messages_are_read_and_written_again() {
    let home = tempfile::tempdir().unwrap();
    let (lab, relays) = servers::start_behind_relays(home.path(), 2, &["--stripe-unit", "256k"], 1);
    relays.iter().for_each(Relay::remember);
    let (mut one, mut other) = Guest::boot_two();
    for version in ["vers=4.1", "vers=4.2"] {
        one.mount(relays[0].port(), version);
        one.ok(WORK);
        other.mount(relays[0].port(), version);
        one.ok("exec 9>>/mnt/large; echo x >&9; sync");
        other.ok("cat /mnt/f /mnt/large > /dev/null; truncate -s 5 /mnt/large; echo more >> /mnt/f");
        one.ok("umount /mnt");
        other.ok("umount /mnt");
    }
    let mut kinds = BTreeMap::new();
    for (from, record) in relays.iter().flat_map(Relay::seen) {
        if let Some(kind) = again(from, &record) {
            kinds.entry(kind).or_insert(record);
        }
    }
    for needed in
        ["EXCHANGE_ID", "LAYOUTGET", "GETDEVICEINFO", "LAYOUTCOMMIT", "WRITE", "LOCKU", "DEALLOCATE", "READDIR"]
    {
        assert!(kinds.keys().any(|kind| kind.starts_with("call") && kind.contains(needed)), "no {needed}");
    }
    assert!(kinds.len() > 50, "only {} kinds", kinds.len());
    // If `WEIR_GOLDEN` is set, write one message of each kind to this file. Other tests check the decoders with these
    // messages.
    if let Some(path) = std::env::var_os("WEIR_GOLDEN") {
        let mut text = format!("# Messages between {} and Weir, one of each kind.\n", one.kernel);
        for (kind, record) in kinds.iter().filter(|(_, record)| record.len() <= 2048) {
            let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "# {kind}\n{hex}").unwrap();
        }
        std::fs::write(path, text).unwrap();
    }
    lab.fsck();
}

/// A script that writes, appends under a lock, renames and reads, until `/tmp/stop` exists. The script fails if it
/// reads other bytes than it wrote.
const BUSY: &str = "
cat > /tmp/busy.sh <<'END'
me=$1
dir=/mnt/$me
i=0
fail() { echo \"$me: $*\" > /tmp/failed.$me; exit 1; }
mkdir -p $dir || fail mkdir
until [ -e /tmp/stop ]; do
    i=$((i + 1))
    size=$((i * 7919 % 900 + 1))
    dd if=/tmp/data of=$dir/a bs=1k count=$size 2>/dev/null || fail write $i
    mv $dir/a $dir/b || fail rename $i
    ln $dir/b $dir/c || fail link $i
    [ -e $dir/a ] && fail the old name is left $i
    head -c $((size * 1024)) /tmp/data | cmp - $dir/c || fail other bytes through $dir/c $i
    dd if=$dir/b of=/tmp/back.$me bs=1M iflag=direct 2>/dev/null || fail read $i
    head -c $((size * 1024)) /tmp/data | cmp - /tmp/back.$me || fail other bytes $i
    rm $dir/b $dir/c || fail remove $i
    (flock 8 && echo $me $i >> /mnt/shared) 8>>/mnt/lock || fail append $i
    echo $i > /tmp/rounds.$me
done
echo done > /tmp/done.$me
END
dd if=/dev/urandom of=/tmp/data bs=1k count=1000 2>/dev/null
for me in $(seq 3); do echo 0 > /tmp/rounds.$me; sh /tmp/busy.sh $me >/dev/null 2>&1 & done";

#[test]
fn delayed_repeated_cut_and_dropped_messages_do_no_harm() {
    let seed = std::env::var("WEIR_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("WEIR_TEST_SEED={seed}");
    let home = tempfile::tempdir().unwrap();
    let options = ["--stripe-unit", "64k", "--mds-threshold", "100k"];
    let (lab, relays) = servers::start_behind_relays(home.path(), 2, &options, seed);
    let mut guest = Guest::boot();
    guest.mount(relays[0].port(), "vers=4.2,timeo=50,retrans=2");
    guest.ok(BUSY);
    relays.iter().for_each(|relay| relay.mistreat(50));
    let until = Instant::now() + Duration::from_secs(if full() { 600 } else { 20 });
    // Continue until the relay has injected each kind of fault at least once, even on a slow machine.
    let tried = || {
        let harm = relays[0].harm();
        harm.delayed > 0 && harm.repeated > 0 && harm.cut > 0 && harm.dropped > 0
    };
    while Instant::now() < until || !tried() {
        assert!(Instant::now() < until + Duration::from_secs(180), "{:?}", relays[0].harm());
        guest.ok("usleep 1000000; for f in /tmp/failed.*; do [ -e $f ] && cat $f && exit 1; done; true");
    }
    relays.iter().for_each(|relay| relay.mistreat(0));
    guest.ok("touch /tmp/stop; until [ -e /tmp/done.1 -a -e /tmp/done.2 -a -e /tmp/done.3 ]; do
        for f in /tmp/failed.*; do [ -e $f ] && cat $f && exit 1; done; usleep 100000; done");
    for me in 1..=3 {
        let rounds: u32 = guest.ok(&format!("cat /tmp/rounds.{me}")).parse().unwrap();
        let appended = guest.ok(&format!("grep '^{me} ' /mnt/shared"));
        let wanted: Vec<String> = (1..=rounds).map(|i| format!("{me} {i}")).collect();
        assert_eq!(appended, wanted.join("\n"), "what was appended");
    }
    let harm: Vec<_> = relays.iter().map(Relay::harm).collect();
    println!("{harm:?}, rounds {}", guest.ok("cat /tmp/rounds.*").replace('\n', " "));
    guest.ok("umount /mnt");
    lab.fsck();
}
