//! Random requests of two clients, derived from a byte string, for the fuzz target: the server must execute these
//! requests without a panic and keep consistent state tables.

use super::{Bench, LEASE, Peer};
use crate::attrs::{self, Mask};
use crate::name_delegations::OWN_CHANGES;
use crate::server::{Counters, reply_bound};
use crate::testing::memory::{DEVICE, LAYOUT_KIND};
use bytes::Bytes;
use futures_util::FutureExt;
use std::time::Duration;
use types::{SetAttrs, SetTime};
use wire::nfs4::*;
use wire::nfs4::{nfs_argop4 as Arg, nfs_resop4 as Res};
use xdr::Xdr;

/// A source of random decisions: the bytes of a string, then zeros.
struct Dice<'a>(&'a [u8]);

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()].clone()
    }

    fn number(&mut self) -> u64 {
        self.of(&[0, 0, 1, 8, 100, 4096, 4096, 65536, 1 << 22, u64::from(u32::MAX), u64::MAX - 1, u64::MAX])
    }

    fn name(&mut self) -> Bytes {
        const ODD: &[&[u8]] = &[b"", b".", b"..", b"a/b", &[b'x'; 256]];
        match self.byte() {
            0..240 => Bytes::from_static(self.of(&[b"a", b"b", b"c", b"dir", b"link"])),
            _ => Bytes::from_static(self.of(ODD)),
        }
    }
}

/// Stateids and filehandles from replies to any client, which later requests use again.
#[derive(Default)]
pub struct Seen {
    stateids: Vec<stateid4>,
    handles: Vec<Bytes>,
}

impl Seen {
    fn stateid(&self, dice: &mut Dice) -> stateid4 {
        let which = usize::from(dice.byte());
        let current = stateid4 { seqid: 1, other: [0; 12] };
        let special = [
            current,
            current,
            current,
            stateid4 { seqid: 0, other: [0; 12] },
            stateid4 { seqid: u32::MAX, other: [255; 12] },
        ];
        match self.stateids.len() {
            n if n > 0 && which >= 64 => {
                let mut stateid = self.stateids[which % n];
                stateid.seqid = dice.of(&[0, stateid.seqid, stateid.seqid.wrapping_add(1)]);
                stateid
            }
            _ => special[which % special.len()],
        }
    }

    /// Adds the stateids and filehandles of a reply.
    pub fn note(&mut self, reply: &COMPOUND4res) {
        for result in &reply.resarray {
            match result {
                Res::OP_OPEN(OPEN4res::NFS4_OK(open)) => {
                    self.stateids.push(open.stateid);
                    match &open.delegation {
                        open_delegation4::OPEN_DELEGATE_READ(given) => self.stateids.push(given.stateid),
                        open_delegation4::OPEN_DELEGATE_WRITE(given) => self.stateids.push(given.stateid),
                        _ => {}
                    }
                }
                Res::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::NFS4_OK(
                    GET_DIR_DELEGATION4res_non_fatal::GDD4_OK(given),
                )) => self.stateids.push(given.gddr_stateid),
                Res::OP_LOCK(LOCK4res::NFS4_OK(lock)) => self.stateids.push(lock.lock_stateid),
                Res::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(layout)) => self.stateids.push(layout.logr_stateid),
                Res::OP_GETFH(GETFH4res::NFS4_OK(handle)) => self.handles.push(handle.object.clone()),
                _ => {}
            }
        }
        // Keep only the newest 64 stateids, because most older stateids are invalid.
        let old = self.stateids.len().saturating_sub(64);
        self.stateids.drain(..old);
        self.handles.truncate(64);
    }
}

fn set(dice: &mut Dice) -> fattr4 {
    let bits = dice.byte() & dice.byte();
    let on = |n: u8| bits >> n & 1 == 1;
    attrs::encode_set(&SetAttrs {
        mode: on(0).then_some(0o755),
        uid: on(1).then_some(1000),
        gid: on(2).then_some(5),
        size: on(3).then(|| dice.number().min(1 << 61)),
        atime: on(4).then_some(SetTime::Now),
        mtime: on(5).then_some(SetTime::Now),
    })
}

fn bitmap(dice: &mut Dice) -> bitmap4 {
    let all = Mask(u128::MAX).without(attrs::WRITE_ONLY);
    dice.of(&[Mask::NONE, attrs::OBJECT, attrs::STATFS, all, Mask(u128::MAX)]).to_bitmap()
}

fn open(dice: &mut Dice, seen: &Seen) -> OPEN4args {
    let how = match dice.byte() % 8 {
        0..4 => openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(set(dice))),
        4 => openflag4::OPEN4_CREATE(createhow4::GUARDED4(set(dice))),
        5 => openflag4::OPEN4_CREATE(createhow4::EXCLUSIVE4([1; 8])),
        6 => {
            openflag4::OPEN4_CREATE(createhow4::EXCLUSIVE4_1(creatverfattr { cva_verf: [2; 8], cva_attrs: set(dice) }))
        }
        _ => openflag4::Default(OPEN4_NOCREATE),
    };
    let claim = match dice.byte() % 32 {
        0..28 => open_claim4::CLAIM_NULL(dice.name()),
        28 => open_claim4::CLAIM_DELEG_CUR_FH(seen.stateid(dice)),
        29 => open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE),
        30 => open_claim4::CLAIM_DELEG_PREV_FH,
        _ => open_claim4::CLAIM_FH,
    };
    OPEN4args {
        seqid: 0,
        share_access: dice.of(&[1, 2, 3, 3, 3, 3, 3, 3, 0, 0x103, 0x403, 0xfff]),
        share_deny: dice.of(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]),
        owner: state_owner4 { clientid: 0, owner: Bytes::from_static(dice.of(&[b"one", b"two"])) },
        openhow: how,
        claim,
    }
}

/// Returns a random operation on names or attributes.
fn namespace(dice: &mut Dice, seen: &Seen) -> Arg {
    match dice.byte() % 19 {
        0 => Arg::OP_ACCESS(ACCESS4args { access: u32::from(dice.byte()) }),
        1 => Arg::OP_CREATE(CREATE4args {
            objtype: dice.of(&[
                createtype4::NF4DIR,
                createtype4::NF4LNK(Bytes::from_static(b"target")),
                createtype4::NF4FIFO,
                createtype4::NF4CHR(specdata4 { specdata1: 1, specdata2: 2 }),
                createtype4::Default(NF4REG),
            ]),
            objname: dice.name(),
            createattrs: set(dice),
        }),
        2 => Arg::OP_GETATTR(GETATTR4args { attr_request: bitmap(dice) }),
        3 => Arg::OP_GETFH,
        4 => Arg::OP_LINK(LINK4args { newname: dice.name() }),
        5 => Arg::OP_LOOKUP(LOOKUP4args { objname: dice.name() }),
        6 => Arg::OP_LOOKUPP,
        7 => Arg::OP_NVERIFY(NVERIFY4args { obj_attributes: set(dice) }),
        8 => Arg::OP_PUTFH(PUTFH4args { object: Bytes::from_static(b"no such handle") }),
        9 => Arg::OP_PUTROOTFH,
        10 => Arg::OP_READDIR(READDIR4args {
            cookie: u64::from(dice.byte()),
            cookieverf: [0; 8],
            dircount: dice.number() as u32,
            maxcount: dice.number() as u32,
            attr_request: bitmap(dice),
        }),
        11 => Arg::OP_READLINK,
        12 => Arg::OP_REMOVE(REMOVE4args { target: dice.name() }),
        13 => Arg::OP_RENAME(RENAME4args { oldname: dice.name(), newname: dice.name() }),
        14 => Arg::OP_RESTOREFH,
        15 => Arg::OP_SAVEFH,
        16 => Arg::OP_SECINFO(SECINFO4args { name: dice.name() }),
        17 => Arg::OP_SETATTR(SETATTR4args { stateid: seen.stateid(dice), obj_attributes: set(dice) }),
        _ => match seen.handles.len() {
            0 => Arg::OP_PUTPUBFH,
            n => Arg::OP_PUTFH(PUTFH4args { object: seen.handles[usize::from(dice.byte()) % n].clone() }),
        },
    }
}

/// Returns a random LOCK, LOCKT or LOCKU. The byte ranges often overlap.
fn locking(dice: &mut Dice, seen: &Seen) -> Arg {
    let locktype = dice.of(&[READ_LT, WRITE_LT, READW_LT, WRITEW_LT]);
    let (offset, length) = (dice.of(&[0, 0, 1, 2, 4096, u64::MAX]), dice.of(&[1, 2, 3, 4096, u64::MAX, 0]));
    let owner = lock_owner4 { clientid: 0, owner: Bytes::from_static(dice.of(&[b"one", b"two"])) };
    match dice.byte() % 8 {
        0..3 => Arg::OP_LOCK(LOCK4args {
            locktype,
            reclaim: dice.byte() > 240,
            offset,
            length,
            locker: locker4::TRUE(open_to_lock_owner4 {
                open_seqid: 0,
                open_stateid: seen.stateid(dice),
                lock_seqid: 0,
                lock_owner: owner,
            }),
        }),
        3 | 4 => Arg::OP_LOCK(LOCK4args {
            locktype,
            reclaim: false,
            offset,
            length,
            locker: locker4::FALSE(exist_lock_owner4 { lock_stateid: seen.stateid(dice), lock_seqid: 0 }),
        }),
        5 => Arg::OP_LOCKT(LOCKT4args { locktype, offset, length, owner }),
        _ => Arg::OP_LOCKU(LOCKU4args { locktype, seqid: 0, lock_stateid: seen.stateid(dice), offset, length }),
    }
}

/// Returns a random operation on open files, locks or layouts.
fn data(dice: &mut Dice, seen: &Seen) -> Arg {
    match dice.byte() % 24 {
        18.. => locking(dice, seen),
        0 => Arg::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: seen.stateid(dice) }),
        1 => Arg::OP_COMMIT(COMMIT4args { offset: dice.number(), count: dice.number() as u32 }),
        2..6 => Arg::OP_OPEN(open(dice, seen)),
        6 => Arg::OP_OPEN_DOWNGRADE(OPEN_DOWNGRADE4args {
            open_stateid: seen.stateid(dice),
            seqid: 0,
            share_access: u32::from(dice.byte() % 5),
            share_deny: u32::from(dice.byte() % 5),
        }),
        7 => {
            Arg::OP_READ(READ4args { stateid: seen.stateid(dice), offset: dice.number(), count: dice.number() as u32 })
        }
        8 => Arg::OP_WRITE(WRITE4args {
            stateid: seen.stateid(dice),
            offset: dice.number(),
            stable: dice.of(&[UNSTABLE4, DATA_SYNC4, FILE_SYNC4]),
            data: Bytes::from(vec![7; usize::from(dice.byte())]),
        }),
        9 => Arg::OP_TEST_STATEID(TEST_STATEID4args { ts_stateids: vec![seen.stateid(dice), seen.stateid(dice)] }),
        10 => Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: seen.stateid(dice) }),
        11 | 12 => Arg::OP_LAYOUTGET(LAYOUTGET4args {
            loga_signal_layout_avail: false,
            loga_layout_type: dice.of(&[LAYOUT_KIND, LAYOUT_KIND, LAYOUT_KIND, 1]),
            loga_iomode: dice.of(&[LAYOUTIOMODE4_RW, LAYOUTIOMODE4_READ, LAYOUTIOMODE4_ANY]),
            loga_offset: dice.of(&[0, 0, 4096]),
            loga_length: dice.number(),
            loga_minlength: 0,
            loga_stateid: seen.stateid(dice),
            loga_maxcount: dice.of(&[4096, 4096, 10]),
        }),
        13 => Arg::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4args {
            loca_offset: 0,
            loca_length: dice.number(),
            loca_reclaim: false,
            loca_stateid: seen.stateid(dice),
            loca_last_write_offset: dice.of(&[newoffset4::FALSE, newoffset4::TRUE(99)]),
            loca_time_modify: newtime4::FALSE,
            loca_layoutupdate: layoutupdate4 { lou_type: LAYOUT_KIND, lou_body: Bytes::new() },
        }),
        14 | 15 => Arg::OP_LAYOUTRETURN(LAYOUTRETURN4args {
            lora_reclaim: false,
            lora_layout_type: LAYOUT_KIND,
            lora_iomode: LAYOUTIOMODE4_ANY,
            lora_layoutreturn: match dice.byte() % 4 {
                0 => layoutreturn4::Default(LAYOUTRETURN4_ALL),
                _ => layoutreturn4::LAYOUTRETURN4_FILE(layoutreturn_file4 {
                    lrf_offset: 0,
                    lrf_length: dice.number(),
                    lrf_stateid: seen.stateid(dice),
                    lrf_body: Bytes::new(),
                }),
            },
        }),
        16 => Arg::OP_GETDEVICEINFO(GETDEVICEINFO4args {
            gdia_device_id: dice.of(&[DEVICE, [0; 16]]),
            gdia_layout_type: LAYOUT_KIND,
            gdia_maxcount: dice.number() as u32,
            gdia_notify_types: vec![6],
        }),
        _ => Arg::OP_VERIFY(VERIFY4args { obj_attributes: set(dice) }),
    }
}

/// Returns a random operation of NFSv4.2, a rare operation of NFSv4.1, or an operation that is invalid inside a
/// COMPOUND.
fn others(dice: &mut Dice, seen: &Seen, peer: &Peer) -> Arg {
    let stateid = seen.stateid(dice);
    match dice.byte() % 24 {
        22 | 23 => Arg::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4args {
            gdda_notification_types: Mask::of(&[dice.of(&[0, OWN_CHANGES, OWN_CHANGES])]).to_bitmap(),
            ..GET_DIR_DELEGATION4args::default()
        }),
        18 => Arg::OP_READ_PLUS(READ_PLUS4args {
            rpa_stateid: stateid,
            rpa_offset: dice.number(),
            rpa_count: dice.number() as u32,
        }),
        19 => Arg::OP_COPY(COPY4args {
            ca_src_stateid: stateid,
            ca_dst_stateid: seen.stateid(dice),
            ca_src_offset: dice.of(&[0, 0, 1]),
            ca_dst_offset: dice.number(),
            ca_count: dice.of(&[0, 0, 1, 4096, u64::MAX]),
            ..COPY4args::default()
        }),
        20 => Arg::OP_LAYOUTSTATS(LAYOUTSTATS4args { lsa_stateid: stateid, ..LAYOUTSTATS4args::default() }),
        21 => Arg::OP_LAYOUTERROR(LAYOUTERROR4args { lea_stateid: stateid, ..LAYOUTERROR4args::default() }),
        16 => Arg::OP_DELEGRETURN(DELEGRETURN4args { deleg_stateid: stateid }),
        17 => Arg::OP_BACKCHANNEL_CTL(BACKCHANNEL_CTL4args {
            bca_cb_program: 0x4000_0000,
            bca_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
        }),
        0 => {
            Arg::OP_ALLOCATE(ALLOCATE4args { aa_stateid: stateid, aa_offset: dice.number(), aa_length: dice.number() })
        }
        1 => Arg::OP_DEALLOCATE(DEALLOCATE4args {
            da_stateid: stateid,
            da_offset: dice.number(),
            da_length: dice.number(),
        }),
        2 => Arg::OP_SEEK(SEEK4args {
            sa_stateid: stateid,
            sa_offset: dice.number(),
            sa_what: dice.of(&[NFS4_CONTENT_DATA, NFS4_CONTENT_HOLE]),
        }),
        3 => Arg::OP_IO_ADVISE(IO_ADVISE4args {
            iaa_stateid: stateid,
            iaa_offset: dice.number(),
            iaa_count: dice.number(),
            iaa_hints: vec![2],
        }),
        4 => Arg::OP_SETXATTR(SETXATTR4args {
            sxa_option: dice.of(&[SETXATTR4_EITHER, SETXATTR4_CREATE, SETXATTR4_REPLACE]),
            sxa_key: dice.name(),
            sxa_value: Bytes::from(vec![1; usize::from(dice.byte())]),
        }),
        5 => Arg::OP_GETXATTR(GETXATTR4args { gxa_name: dice.name() }),
        6 => Arg::OP_LISTXATTRS(LISTXATTRS4args { lxa_cookie: dice.number(), lxa_maxcount: dice.number() as u32 }),
        7 => Arg::OP_REMOVEXATTR(REMOVEXATTR4args { rxa_name: dice.name() }),
        8 => Arg::OP_SECINFO_NO_NAME(dice.of(&[SECINFO_STYLE4_CURRENT_FH, SECINFO_STYLE4_PARENT])),
        9 => Arg::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: dice.byte() < 128 }),
        10 => Arg::OP_DESTROY_CLIENTID(DESTROY_CLIENTID4args { dca_clientid: peer.client }),
        11 => Arg::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4args {
            bctsa_sessid: peer.session,
            bctsa_dir: channel_dir_from_client4::CDFC4_FORE,
            bctsa_use_conn_in_rdma_mode: false,
        }),
        12 => peer.next_sequence(),
        13 => Arg::OP_ILLEGAL,
        14 => Arg::OP_OPENATTR(OPENATTR4args { createdir: false }),
        _ => Arg::OP_RENEW(RENEW4args { clientid: 0 }),
    }
}

/// Adds operations that open a file, open it again with more share bits, and downgrade the open.
fn upgrade_and_downgrade(dice: &mut Dice, seen: &Seen, ops: &mut Vec<Arg>) {
    let more = OPEN4args { share_access: OPEN4_SHARE_ACCESS_BOTH, ..open(dice, seen) };
    let less = OPEN4args { share_access: OPEN4_SHARE_ACCESS_READ, ..more.clone() };
    ops.extend([Arg::OP_OPEN(less), Arg::OP_PUTROOTFH, Arg::OP_OPEN(more)]);
    ops.push(Arg::OP_OPEN_DOWNGRADE(OPEN_DOWNGRADE4args {
        open_stateid: stateid4 { seqid: 1, other: [0; 12] },
        seqid: 0,
        share_access: OPEN4_SHARE_ACCESS_READ,
        share_deny: OPEN4_SHARE_DENY_NONE,
    }));
}

/// Adds operations that open two files and copy from one to the other.
fn copying(dice: &mut Dice, seen: &Seen, ops: &mut Vec<Arg>) {
    let current = stateid4 { seqid: 1, other: [0; 12] };
    let opening = |dice: &mut Dice| Arg::OP_OPEN(OPEN4args { share_access: 3, ..open(dice, seen) });
    ops.extend([opening(dice), Arg::OP_SAVEFH, Arg::OP_PUTROOTFH, opening(dice)]);
    ops.push(Arg::OP_COPY(COPY4args { ca_src_stateid: current, ca_dst_stateid: current, ..COPY4args::default() }));
}

/// Adds a sequence of operations that belong together, such as CREATE and READLINK of a symbolic link.
fn idiom(dice: &mut Dice, seen: &Seen, ops: &mut Vec<Arg>) {
    let (dir, link) = (Bytes::from_static(b"dir"), Bytes::from_static(b"link"));
    match dice.byte() % 9 {
        8 => copying(dice, seen, ops),
        7 => {
            let deleg_stateid = seen.stateids.last().copied().unwrap_or_default();
            ops.push(Arg::OP_OPEN(OPEN4args { share_access: 3, share_deny: 0, ..open(dice, seen) }));
            ops.push(Arg::OP_DELEGRETURN(DELEGRETURN4args { deleg_stateid }));
        }
        0 => {
            ops.extend([Arg::OP_OPEN(open(dice, seen)), Arg::OP_SAVEFH, Arg::OP_PUTROOTFH]);
            ops.push(Arg::OP_LINK(LINK4args { newname: dice.name() }));
        }
        1 => {
            let createattrs = set(dice);
            let create = CREATE4args { objtype: createtype4::NF4DIR, objname: dir.clone(), createattrs };
            ops.extend([
                Arg::OP_PUTROOTFH,
                dice.of(&[Arg::OP_CREATE(create), Arg::OP_LOOKUP(LOOKUP4args { objname: dir })]),
            ]);
            ops.extend([Arg::OP_LOOKUPP]);
        }
        2 => {
            let objtype = createtype4::NF4LNK(Bytes::from_static(b"target"));
            let create = CREATE4args { objtype, objname: link, createattrs: set(dice) };
            ops.extend([Arg::OP_PUTROOTFH, Arg::OP_CREATE(create), Arg::OP_READLINK]);
        }
        3 => {
            let gxa_name = dice.name();
            let value = Bytes::from_static(b"value");
            let set = SETXATTR4args { sxa_option: SETXATTR4_EITHER, sxa_key: gxa_name.clone(), sxa_value: value };
            ops.extend([Arg::OP_SETXATTR(set), Arg::OP_GETXATTR(GETXATTR4args { gxa_name })]);
        }
        4 => upgrade_and_downgrade(dice, seen, ops),
        5 => {
            // LOCK, LOCKT and LOCKU after this OPEN use the current stateid or a stateid from an earlier reply.
            let current = stateid4 { seqid: 1, other: [0; 12] };
            ops.push(Arg::OP_OPEN(open(dice, seen)));
            for _ in 0..3 {
                let mut next = locking(dice, seen);
                match &mut next {
                    Arg::OP_LOCK(LOCK4args { locker: locker4::TRUE(new), .. }) => new.open_stateid = current,
                    Arg::OP_LOCK(LOCK4args { locker: locker4::FALSE(known), .. }) => known.lock_stateid = current,
                    Arg::OP_LOCKU(unlock) => unlock.lock_stateid = current,
                    _ => {}
                }
                ops.push(next);
            }
        }
        _ => {
            let layout = LAYOUTGET4args {
                loga_signal_layout_avail: false,
                loga_layout_type: LAYOUT_KIND,
                loga_iomode: LAYOUTIOMODE4_RW,
                loga_offset: 0,
                loga_length: u64::MAX,
                loga_minlength: 0,
                loga_stateid: stateid4 { seqid: 1, other: [0; 12] },
                loga_maxcount: 4096,
            };
            let lsa_stateid = layout.loga_stateid;
            ops.extend([Arg::OP_OPEN(open(dice, seen)), Arg::OP_LAYOUTGET(layout)]);
            ops.push(match dice.byte() % 4 {
                0 => Arg::OP_LAYOUTSTATS(LAYOUTSTATS4args { lsa_stateid, ..LAYOUTSTATS4args::default() }),
                1 => Arg::OP_LAYOUTERROR(LAYOUTERROR4args { lea_stateid: lsa_stateid, ..LAYOUTERROR4args::default() }),
                _ => data(dice, seen),
            });
        }
    }
}

/// Returns the operations of one random request of `peer`, derived from `bytes`, with SEQUENCE first.
pub fn random_request(peer: &Peer, bytes: &[u8], seen: &Seen) -> Vec<Arg> {
    request(peer, &mut Dice(bytes), seen)
}

fn request(peer: &Peer, dice: &mut Dice, seen: &Seen) -> Vec<Arg> {
    let mut ops = vec![peer.next_sequence(), Arg::OP_PUTROOTFH];
    if dice.byte() < 64 {
        ops.push(Arg::OP_SAVEFH);
    }
    match dice.byte() {
        0..100 => ops.push(Arg::OP_OPEN(open(dice, seen))),
        100..200 => idiom(dice, seen, &mut ops),
        _ => {}
    }
    for _ in 0..dice.byte() % 5 {
        ops.push(match dice.byte() % 8 {
            0..4 => namespace(dice, seen),
            4..7 => data(dice, seen),
            _ => others(dice, seen, peer),
        });
    }
    ops.truncate(8);
    ops
}

/// Sends random requests derived from `bytes`, and returns the server's counters.
///
/// # Panics
/// A reply is malformed, a retry gets a reply that differs from the reply to the first transmission, or the
/// server still has state after both clients are gone.
pub fn play(bytes: &[u8]) -> Counters {
    let bench = Bench::default();
    let mut peers = [Peer::meet(&bench, 1), Peer::meet(&bench, 2)];
    let mut met = 2;
    let mut dice = Dice(bytes);
    let mut seen = Seen::default();
    while !dice.0.is_empty() {
        let which = usize::from(dice.byte() & 1);
        let peer = &peers[which];
        // The clients reply NOMATCHING_LAYOUT to callbacks, so that no request waits for a recall.
        (0..4).for_each(|_| bench.server.callbacks().next(Some(NFS4ERR_NOMATCHING_LAYOUT)));
        // Compute the sequence number before generating the operations. The operations may contain another SEQUENCE,
        // and generating it changes the client's sequence number.
        let number = peer.sequence.get().wrapping_add(1);
        let ops = request(peer, &mut dice, &seen);
        let mut body = peer.call(ops).body;
        if dice.byte() == 255 {
            // Damage the request: change one byte, and perhaps truncate the request.
            let mut damaged = body.to_vec();
            let at = usize::from(dice.byte()) * 3 % damaged.len();
            damaged[at] ^= dice.byte();
            damaged.truncate(damaged.len() - usize::from(dice.byte() % 4) * 4);
            body = damaged.into();
        }
        if !exchange(peer, number, body, &mut seen) {
            met += 1;
            peers[which] = Peer::meet(&bench, met);
        }
        if dice.byte() == 254 {
            bench.pass(Duration::from_secs(u64::from(dice.byte())));
        }
    }
    bench.pass(LEASE * 3);
    bench.pass(LEASE * 3);
    let left = bench.server.inspect(|state| state.counts());
    assert_eq!(left, crate::state::Counts::default(), "state is left behind");
    bench.server.counters()
}

/// Sends the request with this sequence number. If the server cached the reply, sends the request again and compares
/// the replies. Returns whether the session is still usable.
fn exchange(peer: &Peer, number: u32, body: Bytes, seen: &mut Seen) -> bool {
    let send = || peer.bench.server.compound(peer.raw(body.clone())).now_or_never();
    let Some(Ok(reply)) = send() else {
        peer.sequence.set(number.wrapping_sub(1));
        return true;
    };
    let reply = reply.to_bytes();
    assert!(reply.len() <= reply_bound(&body), "{} bytes of {body:?}", reply.len());
    let decoded = COMPOUND4res::from_bytes(&reply).expect("replies can be read");
    seen.note(&decoded);
    // Only a successful SEQUENCE in first position uses up the sequence number.
    let begun = matches!(decoded.resarray.first(), Some(first) if is_sequence(first));
    peer.sequence.set(if begun { number } else { number.wrapping_sub(1) });
    let kept = reply.len() < 500 && begun;
    if kept && peer.bench.server.inspect(|state| state.session(peer.session).is_some()) {
        let again = send().and_then(Result::ok).expect("a retry is answered at once").to_bytes();
        assert_eq!(again, reply, "{:?}", COMPOUND4res::from_bytes(&again));
    }
    !matches!(decoded.status, NFS4ERR_BADSESSION | NFS4ERR_SEQ_MISORDERED)
}

fn is_sequence(result: &Res) -> bool {
    matches!(result, Res::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(_)))
}
