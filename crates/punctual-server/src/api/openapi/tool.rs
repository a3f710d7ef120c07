//! Rate limiters, locks and leaderboards.

use punctual::limits::{
    BATCH_MAX, BOARD_ADD_MAX, BOARD_MEMBERS_MAX, BUCKETS_OF_BOARD_MAX, LOG_MAX, RATE_MAX,
};
use serde_json::{Value, json};

use super::shape::{
    Field, Schemas, closed, flag, hex, instant, list, one_of, open, or_null, reference, signed, tagged, text,
    whole, within, word,
};

const MAX: u64 = BATCH_MAX as u64;

fn limit() -> Value {
    let period = || ("period_ms", whole("The period, 1 ms to 30 days."));
    let log = [
        ("max", within(1, LOG_MAX.into(), "The most calls in any window.")),
        period(),
        ("counts_refused", flag("Whether refused calls count, too.")),
    ];
    let gcra = [
        ("max", within(1, RATE_MAX.into(), "Calls per period.")),
        period(),
        ("burst", within(1, RATE_MAX.into(), "Calls at once after a pause.")),
    ];
    let rules = [
        tagged("log", closed("At most this many calls in any window.", log)),
        tagged("gcra", closed("Calls at an even rate, with bursts.", gcra)),
    ];
    closed(
        "Asks a rate limiter, and counts the call if it is allowed.",
        [
            ("name", text("The limiter.")),
            ("key", text("The key that is counted separately.")),
            ("cost", whole("The cost of the call, from 1.")),
            ("rule", one_of("The rule.", rules)),
        ],
    )
}

fn lock() -> Value {
    let name = || ("name", text("The lock, 1 to 249 bytes."));
    let owner = || ("owner", hex(32, "A random number that identifies the owner."));
    let lease = || ("lease_ms", whole("The length of the lease, 100 to 86,400,000."));
    let any_owner = ("owner?", or_null(hex(32, "The owner that must hold it (default: any).")));
    one_of(
        "A step on a lock.",
        [
            tagged("acquire", closed("Acquires the lock if it is free.", [name(), owner(), lease()])),
            tagged("extend", closed("Restarts the lease of its holder.", [name(), owner(), lease()])),
            tagged("release", closed("Frees the lock.", [name(), any_owner])),
            tagged("show", closed("Returns the holding.", [name()])),
            tagged(
                "list",
                closed("Returns the locks that are held.", [("limit", within(1, MAX, "The most locks."))]),
            ),
        ],
    )
}

fn board() -> Value {
    let member = || ("member", text("The member, 1 to 255 bytes."));
    let members_max =
        || ("members_max", within(1, BOARD_MEMBERS_MAX.into(), "The most members of the board."));
    // `"items": false` would say the same as the most items, but generators stumble over it.
    let pair = json!({"type": "array", "prefixItems": [{"type": "string"}, signed("")], "minItems": 2, "maxItems": 2});
    let members = json!({"type": "array", "items": pair, "minItems": 1, "maxItems": BOARD_ADD_MAX,
        "description": "The members, and how much each gets."});
    let of = |tag, description: &str, fields: Vec<Field>| tagged(tag, closed(description, fields));
    let acts = [
        json!({"const": "size"}),
        of("add", "Adds to a score.", vec![member(), ("by", signed("How much.")), members_max()]),
        of("add_all", "Adds to several scores.", vec![("members", members), members_max()]),
        of("set", "Sets a score.", vec![member(), ("score", signed("The score.")), members_max()]),
        of("remove", "Removes a member.", vec![member()]),
        of("rank", "Returns the rank of a member.", vec![member()]),
        of("top", "Returns the highest members.", vec![("n", within(1, MAX, "The most members."))]),
        of(
            "around",
            "Returns a member and its neighbours.",
            vec![member(), ("n", within(1, 100, "The most on each side."))],
        ),
    ];
    let window = closed(
        "The current bucket and those before it.",
        [
            ("bucket", word(&["minute", "hour", "day"], "The kind of bucket.")),
            ("buckets", within(1, BUCKETS_OF_BOARD_MAX.into(), "The number of buckets.")),
        ],
    );
    closed(
        "A step on a leaderboard.",
        [("name", text("The board.")), ("window?", or_null(window)), ("act", one_of("What to do.", acts))],
    )
}

fn answer() -> Value {
    let held = || reference("Held");
    let locks = [("locks", list(&held(), "The locks.")), ("more", flag("Whether there are more."))];
    let standing = open(
        "A member.",
        [
            ("rank", whole("The rank, from 1.")),
            ("member", text("The member.")),
            ("score", signed("The score.")),
        ],
    );
    let allowance =
        [json!({"const": "allowed"}), tagged("retry_after_ms", whole("When it will be allowed."))];
    let of_lock = [
        json!({"enum": ["released", "free"]}),
        tagged("yours", held()),
        tagged("taken", held()),
        tagged("listed", open("Locks that are held.", locks)),
    ];
    let of_board = [
        tagged("score", or_null(signed("The score; null if the member is not listed."))),
        tagged("standings", list(&standing, "Members by rank.")),
        tagged("size", whole("The number of members.")),
    ];
    one_of(
        "The answer of the tool.",
        [
            tagged("limit", one_of("Whether the call is allowed.", allowance)),
            tagged("lock", one_of("The lock now.", of_lock)),
            tagged("board", one_of("The answer of the board.", of_board)),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    let steps = [tagged("limit", limit()), tagged("lock", lock()), tagged("board", board())];
    vec![
        ("ToolRequest", one_of("A step on a tool.", steps)),
        ("ToolAnswer", answer()),
        (
            "Held",
            open(
                "A lock that is held.",
                [
                    ("name", text("The lock.")),
                    ("fence", whole("The number of this holding.")),
                    ("until_ms", instant("When it ends, unless it is extended.")),
                    ("left_ms", whole("The time until then.")),
                ],
            ),
        ),
    ]
}
