"""The demo's news: situations, what may happen in them, and how each may be told.

A frame is one situation. Each of its outcomes is another fact, so that two wordings of one outcome
are paraphrases and wordings of two outcomes are not. A frame's own `wordings` serve all of its
outcomes, which fill in their forms (`{moved}`: "rose", "fell"); an outcome's `wordings` are its
alone. They correspond by position: the same position under two outcomes is the closest near miss.

In a wording, `{name}` is a slot: a form of the outcome, or a filler from the frame's `slots`, or
else from `POOLS` (`{company2}` is another filler of `{company}`). `[this|that]` are synonyms. Every
wording names every slot of its frame, so that no paraphrase leaves out a fact. Fillers stand after
"a", not "an". `swap` are two slots whose exchange makes another fact.

All of it is invented; companies, people and events are fictitious.
"""

POOLS = {
    "company": [
        "Calder Holdings",
        "Norwood Industries",
        "Redfern Group",
        "Lakeshore Brands",
        "Whitfield & Co.",
        "Ironbridge Group",
        "Halden Corp.",
        "Silverton Industries",
    ],
    "person": [
        "[Anna Keller|Keller]",
        "[David Moreno|Moreno]",
        "[Laura Finch|Finch]",
        "[Martin Doyle|Doyle]",
        "[Susan Park|Park]",
        "[Thomas Reed|Reed]",
        "[Maria Santos|Santos]",
        "[Helen Brandt|Brandt]",
    ],
    "city": [
        "Denver",
        "Leeds",
        "Lisbon",
        "Hamburg",
        "Cleveland",
        "Ottawa",
        "Bristol",
        "Dublin",
        "Tucson",
        "Melbourne",
    ],
    "country": [
        "Norway",
        "Chile",
        "Portugal",
        "Canada",
        "Kenya",
        "Japan",
        "Peru",
        "Finland",
        "Morocco",
    ],
    "team": [
        "the Harriers",
        "the Pilots",
        "the Foxes",
        "the Miners",
        "the Comets",
        "the Herons",
        "the Admirals",
    ],
    "university": [
        "Ashford University",
        "Whitmore College",
        "the University of Marlow",
        "Northgate University",
        "Kingsley College",
        "the University of Thornton",
    ],
    "when": [
        "[on Monday|on Monday|at the start of the week]",
        "on Tuesday",
        "[on Wednesday|on Wednesday|in the middle of the week]",
        "on Thursday",
        "[on Friday|on Friday|at the end of the week]",
        "last week",
        "last month",
    ],
    "month": ["January", "March", "May", "June", "July", "September", "November", "December"],
    "season": ["this spring", "this summer", "this autumn", "this winter"],
    "percent": [
        "[2|two]",
        "[3|three]",
        "[4|four]",
        "[5|five]",
        "[6|six]",
        "[7|seven]",
        "[9|nine]",
        "[10|ten]",
        "[12|twelve]",
        "[15|fifteen]",
    ],
    "count": [
        "[200|two hundred]",
        "[300|three hundred]",
        "450",
        "[500|five hundred]",
        "[600|six hundred]",
        "750",
        "[2,000|two thousand]",
        "[3,000|three thousand]",
    ],
    "money": [
        "$ 25 million",
        "$ 40 million",
        "$ 65 million",
        "$ 90 million",
        "$ 120 million",
        "$ 300 million",
        "$ 2 billion",
    ],
    "charge": ["fraud", "bribery", "tax evasion", "burglary", "forgery", "perjury"],
}

FRAMES = [
    # Business
    {
        "topic": "share price",
        "wordings": [
            "Shares [of|in] {company} {moved} {percent} percent {when} .",
            "{when} , {company} 's [stock|share price] {moved} by {percent} percent .",
            "{a_move} of {percent} percent was [recorded|seen] {when} in the shares of {company} .",
            "Investors sent {company} {percent} percent {higher} {when} .",
        ],
        "outcomes": [
            {
                "moved": "[rose|climbed|gained]",
                "a_move": "[a rise|a gain|an increase]",
                "higher": "higher",
                "wordings": [
                    "Buyers rushed into {company} {when} and drove "
                    "its stock up {percent} percent .",
                    "Owning a piece of {company} paid off {when} : it was worth {percent} percent "
                    "more than before .",
                ],
            },
            {
                "moved": "[fell|dropped|slid]",
                "a_move": "[a fall|a drop|a decline]",
                "higher": "lower",
                "wordings": [
                    "Sellers fled from {company} {when} and drove "
                    "its stock down {percent} percent .",
                    "Owning a piece of {company} was costly {when} : it was worth {percent} "
                    "percent less than before .",
                ],
            },
        ],
    },
    {
        "topic": "takeover",
        "swap": ["company", "company2"],
        "wordings": [
            "{company} {did} {company2} for {money} {when} .",
            "{company} 's {money} takeover of {company2} {ended} {when} .",
            "{when} , the purchase of {company2} by {company} for {money} {ended} .",
        ],
        "outcomes": [
            {
                "did": "[bought|acquired]",
                "ended": "[went through|was completed]",
                "wordings": [
                    "{company} paid {money} {when} to [take over|take control of] {company2} .",
                    "{company2} [became part of|passed into the hands of] {company} {when} in a "
                    "deal [worth|valued at] {money} .",
                ],
            },
            {
                "did": "[dropped its plan|gave up its attempt] to buy",
                "ended": "[fell through|collapsed]",
                "wordings": [
                    "{company} walked away {when} from a {money} [bid|offer] for {company2} .",
                    "{company2} will stay independent of {company} , which withdrew its {money} "
                    "[bid|offer] {when} .",
                ],
            },
        ],
    },
    {
        "topic": "jobs",
        "wordings": [
            "{company} [said|announced] that it will {act} {count} [people|workers] in {city} .",
            "[Some|About] {count} jobs will be {done} at {company} in {city} .",
            "In {city} , {company} [plans|intends] to {act} {count} [employees|workers] .",
        ],
        "outcomes": [
            {
                "act": "[lay off|dismiss]",
                "done": "[cut|lost]",
                "wordings": [
                    "{company} is shrinking : {count} [employees|staff members] in {city} will "
                    "[have to go|be let go] .",
                    "For {count} people in {city} , work at {company} [is coming to an end|will "
                    "soon be over] .",
                ],
            },
            {
                "act": "[hire|take on]",
                "done": "[created|added]",
                "wordings": [
                    "{company} is growing : {count} [employees|staff members] "
                    "will join it in {city} .",
                    "For {count} people in {city} , work at {company} "
                    "[is about to begin|will soon start] .",
                ],
            },
        ],
    },
    {
        "topic": "quarterly result",
        "slots": {"quarter": ["[first|opening]", "second", "third", "[fourth|final]"]},
        "wordings": [
            "{company} [reported|posted] {a_result} of {money} for the {quarter} quarter .",
            "For the {quarter} quarter , {a_result} of "
            "{money} was [reported|announced] by {company} .",
            "{company} [said|announced] that it had {made} {money} in the {quarter} quarter .",
        ],
        "outcomes": [
            {
                "a_result": "[a profit|net income]",
                "made": "[earned|made]",
                "wordings": [
                    "The {quarter} quarter left {company} {money} [in the black|better off] .",
                    "Business was good at {company} , whose {quarter} quarter [brought|yielded] "
                    "earnings of {money} .",
                ],
            },
            {
                "a_result": "[a loss|a net loss]",
                "made": "lost",
                "wordings": [
                    "The {quarter} quarter left {company} {money} [in the red|worse off] .",
                    "Business was bad at {company} , which [used up|burned through] {money} in the "
                    "{quarter} quarter .",
                ],
            },
        ],
    },
    {
        "topic": "factory",
        "slots": {"product": ["furniture", "glass", "paper", "steel", "clothing", "cement"]},
        "wordings": [
            "{company} will {act} a {product} [factory|plant] in {city} next year .",
            "Next year , {city} will {get} a {product} [factory|plant] [run|owned] by {company} .",
            "From next year on , {company} will {make} {product} in {city} .",
        ],
        "outcomes": [
            {
                "act": "[open|start up]",
                "get": "[gain|receive]",
                "make": "[make|produce]",
                "wordings": [
                    "{company} has chosen {city} as the site of a new {product} works that will "
                    "[start running|go into service] next year .",
                    "The first {product} from {company} 's new works in {city} will be "
                    "[delivered|sold] next year .",
                ],
            },
            {
                "act": "[close|shut down]",
                "get": "lose",
                "make": "no longer [make|produce]",
                "wordings": [
                    "{company} is giving up its {product} works in {city} , where the last shift "
                    "will [end|go home] next year .",
                    "The last {product} from {company} 's old works in {city} will be "
                    "[delivered|sold] next year .",
                ],
            },
        ],
    },
    {
        "topic": "product recall",
        "slots": {
            "goods": [
                "baby strollers",
                "space heaters",
                "bicycle helmets",
                "toasters",
                "hair dryers",
                "garden chairs",
            ]
        },
        "wordings": [
            "{company} {did} {count} {goods} {when} over safety [fears|concerns] .",
            "{when} , {company} [said|announced] that it would {act} {count} {goods} .",
            "Owners of {count} {goods} made by {company} were [told|informed] {when} that they "
            "{should} them .",
        ],
        "outcomes": [
            {
                "did": "[recalled|called back]",
                "act": "[recall|take back]",
                "should": "[should return|had to return]",
                "wordings": [
                    "{company} pulled {count} {goods} [off the market|from stores] {when} .",
                    "A safety [flaw|defect] led {company} {when} to ask "
                    "for the return of {count} {goods} .",
                ],
            },
            {
                "did": "[refused|declined] to recall",
                "act": "not [recall|take back]",
                "should": "[could keep|could go on using]",
                "wordings": [
                    "{company} left {count} {goods} [on the market|in stores] {when} despite calls "
                    "for a recall .",
                    "{company} [denied|disputed] {when} that {count} of its {goods} had any safety "
                    "[flaw|defect] and kept selling them .",
                ],
            },
        ],
    },
    {
        "topic": "chief executive",
        "wordings": [
            "{person} {did} chief executive of {company} {when} .",
            "{when} , {company} {acted} {person} as chief executive .",
            "The [board|directors] of {company} [decided|voted] {when} to "
            "{act} {person} as chief executive .",
        ],
        "outcomes": [
            {
                "did": "[became|was named]",
                "acted": "[appointed|hired]",
                "act": "[appoint|hire]",
                "wordings": [
                    "The top job at {company} [went to|was given to] {person} {when} .",
                    "{person} [took charge of|took the helm at] {company} {when} .",
                ],
            },
            {
                "did": "[was fired as|was removed as]",
                "acted": "[dismissed|ousted]",
                "act": "[dismiss|oust]",
                "wordings": [
                    "The top job at {company} was [taken from|taken away from] {person} {when} .",
                    "{person} was [forced out|shown the door] as head of {company} {when} .",
                ],
            },
        ],
    },
    {
        "topic": "strike",
        "slots": {
            "workers": ["bus drivers", "dock workers", "machinists", "truck drivers", "bakers"]
        },
        "wordings": [
            "{workers} at {company} in {city} {did} {when} .",
            "A strike by {workers} of {company} {began} in {city} {when} .",
            "Picket lines {went_up} outside {company} in {city} "
            "{when} as {workers} {stopped} work .",
        ],
        "outcomes": [
            {
                "did": "[went on strike|walked off the job]",
                "began": "[began|started]",
                "went_up": "went up",
                "stopped": "stopped",
                "wordings": [
                    "{when} , angry {workers} brought {company} in {city} to a [halt|standstill] .",
                    "{company} had to do without its {workers} in {city} after they [laid down|put "
                    "down] their tools {when} .",
                ],
            },
            {
                "did": "[ended their strike|went back to their jobs]",
                "began": "[ended|was called off]",
                "went_up": "came down",
                "stopped": "[resumed|returned to]",
                "wordings": [
                    "{when} , {workers} who had walked out got "
                    "{company} in {city} [moving|going] again .",
                    "{company} could count on its {workers} in {city} again after they [made "
                    "peace|settled] with it {when} .",
                ],
            },
        ],
    },
    {
        "topic": "interest rate",
        "wordings": [
            "The central bank of {country} {did} [its key interest rate|interest rates] {when} .",
            "{when} , interest rates in {country} were {done} by the central bank .",
            "{country} 's central bank [said|announced] {when} that "
            "it would {act} interest rates .",
        ],
        "outcomes": [
            {
                "did": "[raised|increased]",
                "done": "[raised|increased]",
                "act": "[raise|increase]",
                "wordings": [
                    "Borrowing became more [expensive|costly] in {country} {when} by decision of "
                    "the central bank .",
                    "{country} tightened its monetary policy {when} : loans from the central bank "
                    "now cost more .",
                ],
            },
            {
                "did": "[cut|lowered]",
                "done": "[cut|lowered]",
                "act": "[cut|lower]",
                "wordings": [
                    "Borrowing became [cheaper|less costly] in {country} {when} by decision of the "
                    "central bank .",
                    "{country} eased its monetary policy {when} : loans from "
                    "the central bank now cost less .",
                ],
            },
            {
                "did": "[made no change to|did not touch]",
                "done": "[left unchanged|kept steady]",
                "act": "[not change|not touch]",
                "wordings": [
                    "Borrowing costs in {country} [stayed|remained] where they were {when} by "
                    "decision of the central bank .",
                    "{country} left its monetary policy as it was {when} : loans from the central "
                    "bank cost the same as before .",
                ],
            },
        ],
    },
    # Courts and crime
    {
        "topic": "verdict",
        "wordings": [
            "A [jury|court] in {city} {did} {person} of {charge} {when} .",
            "{when} , the {charge} trial of {person} in {city} ended {how} .",
            "{person} was found {guilty} of {charge} by [jurors|a jury] in {city} {when} .",
        ],
        "outcomes": [
            {
                "did": "convicted",
                "how": "[with a conviction|with a guilty verdict]",
                "guilty": "guilty",
                "wordings": [
                    "Jurors in {city} [decided|concluded] {when} that "
                    "{person} had committed {charge} .",
                    "{person} faces [prison|jail] after being held responsible for {charge} by a "
                    "court in {city} {when} .",
                ],
            },
            {
                "did": "[acquitted|cleared]",
                "how": "[in an acquittal|with a verdict of not guilty]",
                "guilty": "[innocent|not guilty]",
                "wordings": [
                    "Jurors in {city} [decided|concluded] {when} that {person} "
                    "had not committed {charge} .",
                    "{person} [walked free|went home free] after a court in {city} threw out the "
                    "{charge} charges {when} .",
                ],
            },
        ],
    },
    {
        "topic": "appeal",
        "wordings": [
            "An appeals court in {city} {did} {person} 's {charge} conviction {when} .",
            "{when} , appeal judges in {city} {ruled} {person} 's conviction for {charge} .",
            "Judges in {city} {answered} {person} 's appeal against a {charge} conviction {when} .",
        ],
        "outcomes": [
            {
                "did": "[upheld|confirmed]",
                "ruled": "[let stand|left in place]",
                "answered": "[rejected|dismissed]",
                "wordings": [
                    "{person} failed {when} to [persuade|convince] an appeals court in {city} to "
                    "lift a {charge} conviction .",
                    "{person} remains a convict : the verdict of {charge} was right , appeal "
                    "judges in {city} [found|said] {when} .",
                ],
            },
            {
                "did": "[overturned|quashed]",
                "ruled": "[struck down|set aside]",
                "answered": "[granted|allowed]",
                "wordings": [
                    "{person} [persuaded|convinced] an appeals court in {city} {when} to lift a "
                    "{charge} conviction .",
                    "{person} is no longer a convict : the verdict of {charge} was wrong , appeal "
                    "judges in {city} [found|said] {when} .",
                ],
            },
        ],
    },
    {
        "topic": "lawsuit",
        "swap": ["company", "company2"],
        "slots": {
            "matter": [
                "a battery patent",
                "a brake design",
                "a copied logo",
                "unpaid bills",
                "a broken contract",
            ]
        },
        "wordings": [
            "{company} {did} {company2} over {matter} {when} .",
            "A lawsuit by {company} against {company2} over {matter} was {done} {when} .",
            "{when} , {company} {acted} a lawsuit against {company2} over {matter} .",
        ],
        "outcomes": [
            {
                "did": "[sued|took legal action against]",
                "done": "[filed|started]",
                "acted": "[filed|brought]",
                "wordings": [
                    "{company} asked a [judge|court] {when} to make "
                    "{company2} pay damages over {matter} .",
                    "{company2} was [taken|brought] to court by {company} {when} "
                    "in a quarrel over {matter} .",
                ],
            },
            {
                "did": "[made peace|settled out of court] with",
                "done": "[dropped|withdrawn]",
                "acted": "[dropped|withdrew]",
                "wordings": [
                    "{company} told a [judge|court] {when} that it no longer wanted damages from "
                    "{company2} over {matter} .",
                    "{company2} was spared a trial when {company} gave "
                    "up its case over {matter} {when} .",
                ],
            },
        ],
    },
    {
        "topic": "robbery",
        "slots": {
            "shop": ["a jewelry store", "a gas station", "a savings bank", "a pharmacy", "a casino"]
        },
        "wordings": [
            "[Police|Officers] {did} the man who robbed {shop} in {city} {when} .",
            "The man who [robbed|held up] {shop} in {city} {when} {was} .",
            "The robbery of {shop} in {city} {when} ended with the thief {where} .",
        ],
        "outcomes": [
            {
                "did": "[arrested|caught]",
                "was": "[was arrested|is in custody]",
                "where": "[behind bars|in handcuffs]",
                "wordings": [
                    "A man is in [jail|prison] for holding up {shop} in {city} {when} .",
                    "[Detectives|Police] have seized the robber who struck "
                    "at {shop} in {city} {when} .",
                ],
            },
            {
                "did": "[failed to catch|are still looking for]",
                "was": "[got away|is still at large]",
                "where": "[on the run|still free]",
                "wordings": [
                    "A man is being [hunted|sought] for holding up {shop} in {city} {when} .",
                    "[Detectives|Police] have no trace of the robber who struck at {shop} in "
                    "{city} {when} .",
                ],
            },
        ],
    },
    # Sport
    {
        "topic": "match",
        "swap": ["team", "team2"],
        "slots": {"score": ["2-0", "2-1", "3-0", "3-1", "4-2", "5-3"]},
        "wordings": [
            "{team} {did} {team2} {score} in {city} {when} .",
            "{when} in {city} , {team} {did} {team2} by a score of {score} .",
            "{team} were {strong} for {team2} and {ended} {score} in {city} {when} .",
            "{team} {had} a {score} {result} against {team2} in {city} {when} .",
        ],
        "outcomes": [
            {
                "did": "[beat|defeated]",
                "strong": "too [good|strong]",
                "ended": "won",
                "had": "[celebrated|enjoyed]",
                "result": "[win|victory]",
                "wordings": [
                    "{team} got the better of {team2} when they met in {city} {when} , and it "
                    "ended {score} .",
                ],
            },
            {
                "did": "[lost to|were beaten by]",
                "strong": "no match",
                "ended": "lost",
                "had": "suffered",
                "result": "[loss|defeat]",
                "wordings": [
                    "{team} came off worse against {team2} when they met in {city} {when} , and it "
                    "ended {score} .",
                ],
            },
        ],
    },
    {
        "topic": "contract",
        "wordings": [
            "{when} , {person} [decided|chose] to {act} {team} after this season .",
            "{person} will {act} {team} after this season "
            ", the [club|team] [said|confirmed] {when} .",
            "{person} {did} a new contract with {team} for next season {when} .",
        ],
        "outcomes": [
            {
                "act": "[stay with|remain with]",
                "did": "[signed|agreed to]",
                "wordings": [
                    "{team} can count on {person} for another "
                    "season , they [said|announced] {when} .",
                    "{person} [turned down|declined] offers from other clubs {when} in order to go "
                    "on playing for {team} next season .",
                ],
            },
            {
                "act": "[leave|quit]",
                "did": "[refused|declined]",
                "wordings": [
                    "{team} must do without {person} from next "
                    "season , they [said|announced] {when} .",
                    "{person} [took|accepted] an offer from another club {when} and will stop "
                    "playing for {team} next season .",
                ],
            },
        ],
    },
    {
        "topic": "injury",
        "slots": {
            "injury": ["a knee injury", "a sprained ankle", "a broken finger", "a sore back"],
            "game": ["the cup final", "the season opener", "the semifinal", "the home game"],
        },
        "wordings": [
            "{person} will {act} {game} for {team} {despite} {injury} .",
            "{despite} {injury} , {team} will {have} {person} in {game} .",
            "The doctor of {team} [declared|called] {person} {fit} for {game} {despite} {injury} .",
        ],
        "outcomes": [
            {
                "act": "[miss|sit out]",
                "despite": "[because of|due to]",
                "have": "[be without|have to do without]",
                "fit": "unfit",
                "wordings": [
                    "{injury} will keep {person} out of {game} , {team} [said|announced] .",
                    "{team} need a [replacement|substitute] for {person} , who "
                    "has {injury} , in {game} .",
                ],
            },
            {
                "act": "[play in|take part in]",
                "despite": "[despite|in spite of]",
                "have": "[count on|be able to use]",
                "fit": "fit",
                "wordings": [
                    "{injury} will not stop {person} from playing in {game} , {team} "
                    "[said|announced] .",
                    "{team} need no [replacement|substitute] for {person} , who will play through "
                    "{injury} , in {game} .",
                ],
            },
        ],
    },
    {
        "topic": "marathon",
        "wordings": [
            "{person} {did} the {city} marathon {when} .",
            "{when} , {person} {ended} in the {city} marathon .",
            "The {city} marathon [brought|ended in] {result} for {person} {when} .",
        ],
        "outcomes": [
            {
                "did": "won",
                "ended": "[came in first|took first place]",
                "result": "[victory|triumph]",
                "wordings": [
                    "Nobody [could keep up with|ran faster than] {person} "
                    "at the {city} marathon {when} .",
                    "{person} [reached|crossed] the finish line of the {city} marathon ahead of "
                    "everyone else {when} .",
                ],
            },
            {
                "did": "[dropped out of|failed to finish]",
                "ended": "[gave up halfway|had to give up]",
                "result": "an early exit",
                "wordings": [
                    "Nobody [could help|was able to help] {person} , who broke down at the {city} "
                    "marathon {when} .",
                    "{person} never [reached|crossed] the finish line of "
                    "the {city} marathon {when} .",
                ],
            },
        ],
    },
    {
        "topic": "coach",
        "wordings": [
            "{team} {did} [coach|head coach] {person} {when} .",
            "{when} , {team} [decided|chose] to {act} coach {person} .",
            "Coach {person} {was} by {team} {when} .",
        ],
        "outcomes": [
            {
                "did": "[fired|dismissed|sacked]",
                "act": "[part with|get rid of]",
                "was": "was [shown the door|let go]",
                "wordings": [
                    "{person} is no longer in charge of {team} after [losing the job|being sent "
                    "away] {when} .",
                    "{team} began their search for a new coach {when} , having [dropped|thrown "
                    "out] {person} .",
                ],
            },
            {
                "did": "[stood by|kept faith with]",
                "act": "[stick with|hold on to]",
                "was": "was given [a new contract|more time]",
                "wordings": [
                    "{person} remains in charge of {team} after "
                    "[keeping the job|being backed] {when} .",
                    "{team} ended all talk of a new "
                    "coach {when} by [backing|supporting] {person} .",
                ],
            },
        ],
    },
    # Weather and nature
    {
        "topic": "hurricane",
        "slots": {
            "storm": ["Iris", "Oscar", "Clara", "Walter", "Nadine"],
            "port": ["Tampa", "Mobile", "Galveston", "Savannah", "Charleston", "Wilmington"],
        },
        "wordings": [
            "Hurricane {storm} {did} {port} {when} .",
            "{when} , {port} was {done} by hurricane {storm} .",
            "Residents of {port} {felt} {when} as hurricane {storm} {went} .",
        ],
        "outcomes": [
            {
                "did": "[struck|hit|slammed into]",
                "done": "[battered|pounded]",
                "felt": "[ran for shelter|feared for their lives]",
                "went": "[came ashore|swept in]",
                "wordings": [
                    "Roofs were torn off in {port} {when} by "
                    "the [winds|gusts] of hurricane {storm} .",
                    "Hurricane {storm} [made landfall|came ashore] at {port} {when} .",
                ],
            },
            {
                "did": "[missed|spared|bypassed]",
                "done": "[spared|left untouched]",
                "felt": "[breathed easier|felt relieved]",
                "went": "[passed far out at sea|moved off]",
                "wordings": [
                    "Not a roof was damaged in {port} {when} , for hurricane {storm} stayed [out "
                    "at sea|offshore] .",
                    "Hurricane {storm} [turned|veered] away from {port} {when} .",
                ],
            },
        ],
    },
    {
        "topic": "record month",
        "wordings": [
            "Last year , {city} [had|saw] its {warmest} {month} [on record|since records began] .",
            "{month} of last year was the {warmest} ever [measured|recorded] in {city} .",
            "Never before had {city} [seen|known] a {month} as {warm} as last year 's .",
            "Record {warmth} was [measured|registered] in {city} in {month} of last year .",
        ],
        "outcomes": [
            {
                "warmest": "[warmest|hottest]",
                "warm": "[warm|hot]",
                "warmth": "[warmth|heat]",
                "wordings": [
                    "Thermometers in {city} [rose|climbed] higher in {month} of last year than in "
                    "any {month} before .",
                ],
            },
            {
                "warmest": "[coldest|chilliest]",
                "warm": "[cold|chilly]",
                "warmth": "cold",
                "wordings": [
                    "Thermometers in {city} [fell|dropped] lower in {month} of last year than in "
                    "any {month} before .",
                ],
            },
            {
                "warmest": "[wettest|rainiest]",
                "warm": "[wet|rainy]",
                "warmth": "[rain|rainfall]",
                "wordings": [
                    "More rain [came down on|fell on] {city} in {month} of last year than in any "
                    "{month} before .",
                ],
            },
        ],
    },
    {
        "topic": "crop damage",
        "wordings": [
            "Farmers [near|around] {city} lost [most|the greater part] of their crops to {cause} "
            "in {month} .",
            "In {month} , {cause} [ruined|destroyed] most of the [crops|harvest] around {city} .",
            "The fields around {city} {were} in {month} , and most of the harvest was "
            "[lost|spoiled] .",
        ],
        "outcomes": [
            {
                "cause": "[floods|flooding]",
                "were": "[were flooded|lay under water]",
                "wordings": [
                    "Rivers near {city} burst their banks in {month} and [carried off|washed away] "
                    "most of the harvest .",
                    "Too much water spoiled most of what was "
                    "[grown|planted] around {city} in {month} .",
                ],
            },
            {
                "cause": "[drought|a lack of rain]",
                "were": "[were parched|dried out]",
                "wordings": [
                    "Rivers near {city} ran dry in {month} and most of the harvest [withered|died "
                    "of thirst] .",
                    "Too little water spoiled most of what was "
                    "[grown|planted] around {city} in {month} .",
                ],
            },
            {
                "cause": "[insects|a plague of insects]",
                "were": "[were full of insects|swarmed with insects]",
                "wordings": [
                    "Swarms of [locusts|hungry insects] descended on {city} in {month} and ate "
                    "most of the harvest .",
                    "Pests [devoured|ate] most of what was planted around {city} in {month} .",
                ],
            },
        ],
    },
    {
        "topic": "wildlife",
        "slots": {"animals": ["wolves", "otters", "eagles", "beavers", "storks", "seals"]},
        "wordings": [
            "The number of {animals} in {country} has {changed} by {percent} percent in [ten "
            "years|a decade] .",
            "[Biologists|Scientists] in {country} counted {percent} percent {more} {animals} than "
            "[ten years|a decade] ago .",
            "{animals} are {thriving} in {country} , where they have become {percent} percent "
            "{common} in a decade .",
        ],
        "outcomes": [
            {
                "changed": "[risen|grown]",
                "more": "more",
                "thriving": "[thriving|doing well]",
                "common": "more numerous",
                "wordings": [
                    "{country} 's population of {animals} [expanded|swelled] by {percent} percent "
                    "over a decade .",
                    "Ten years of protection have given {country} "
                    "{percent} percent more {animals} .",
                ],
            },
            {
                "changed": "[fallen|shrunk]",
                "more": "fewer",
                "thriving": "[struggling|in trouble]",
                "common": "[rarer|less numerous]",
                "wordings": [
                    "{country} 's population of {animals} [dwindled|declined] by {percent} percent "
                    "over a decade .",
                    "Ten years of [hunting|poaching] have cost {country} "
                    "{percent} percent of its {animals} .",
                ],
            },
        ],
    },
    {
        "topic": "zoo",
        "slots": {
            "animal": ["a giraffe", "a panda", "a snow leopard", "a gorilla", "a rhinoceros"]
        },
        "wordings": [
            "{animal} {did} the zoo in {city} {when} .",
            "{when} , the zoo in {city} [announced|reported] the {event} of {animal} .",
        ],
        "outcomes": [
            {
                "did": "was born [at|in]",
                "event": "birth",
                "wordings": [
                    "[Keepers|Staff] at the zoo in {city} helped to deliver {animal} {when} .",
                    "{animal} [saw the light of day|came into the world] "
                    "at the zoo in {city} {when} .",
                    "The zoo in {city} has a new baby "
                    ", {animal} that was [delivered|born] {when} .",
                ],
            },
            {
                "did": "died [at|in]",
                "event": "death",
                "wordings": [
                    "[Keepers|Staff] at the zoo in {city} could not save {animal} {when} .",
                    "{animal} was found [dead|lifeless] in its enclosure at "
                    "the zoo in {city} {when} .",
                    "The zoo in {city} [mourned|was grieving for] "
                    "{animal} that passed away {when} .",
                ],
            },
            {
                "did": "[escaped from|broke out of]",
                "event": "escape",
                "wordings": [
                    "[Keepers|Staff] at the zoo in {city} could not stop {animal} from getting "
                    "away {when} .",
                    "{animal} [got out of|fled from] its enclosure at the zoo in {city} {when} .",
                    "The zoo in {city} [hunted|searched] for {animal} that was missing from its "
                    "cage {when} .",
                ],
            },
        ],
    },
    {
        "topic": "harvest",
        "slots": {"crop": ["wheat", "rice", "corn", "barley", "coffee", "cotton"]},
        "wordings": [
            "This year , {country} [expects|will have] its {best} "
            "{crop} harvest in [ten years|a decade] .",
            "This year 's {crop} harvest in {country} will be the {best} in [ten years|a decade] .",
            "Not for [ten years|a decade] has {crop} grown as {well} in {country} as this year .",
        ],
        "outcomes": [
            {
                "best": "[best|largest]",
                "well": "well",
                "wordings": [
                    "Barns in {country} are [overflowing|bursting] this year with more {crop} than "
                    "in any of the past ten .",
                    "{crop} is [abundant|plentiful] in {country} this year after the finest "
                    "growing season in a decade .",
                ],
            },
            {
                "best": "[worst|smallest]",
                "well": "[badly|poorly]",
                "wordings": [
                    "Barns in {country} are [half empty|almost empty] this year with less {crop} "
                    "than in any of the past ten .",
                    "{crop} is [scarce|hard to find] in {country} this year after the poorest "
                    "growing season in a decade .",
                ],
            },
        ],
    },
    # Science and technology
    {
        "topic": "landing",
        "slots": {
            "craft": ["Lantern", "Beacon", "Pilgrim", "Swallow"],
            "planet": ["Mars", "Venus", "the Moon", "Mercury"],
        },
        "wordings": [
            "The [probe|spacecraft] {craft} {did} {planet} {when} .",
            "{when} , the [attempt|effort] to land the probe {craft} on {planet} {ended} .",
            "The [probe|spacecraft] {craft} {fate} its descent to {planet} {when} .",
        ],
        "outcomes": [
            {
                "did": "[landed|touched down] safely on",
                "ended": "[succeeded|ended in success]",
                "fate": "survived",
                "wordings": [
                    "Engineers [cheered|celebrated] {when} as {craft} sent its first pictures from "
                    "the surface of {planet} .",
                    "{craft} came to rest on {planet} {when} without [a scratch|any damage] .",
                ],
            },
            {
                "did": "[crashed on|smashed into]",
                "ended": "[failed|ended in disaster]",
                "fate": "[did not survive|was destroyed in]",
                "wordings": [
                    "Engineers [mourned|despaired] {when} as {craft} broke into pieces on the "
                    "surface of {planet} .",
                    "{craft} came down far too fast on {planet} {when} and was [wrecked|lost] .",
                ],
            },
        ],
    },
    {
        "topic": "food study",
        "slots": {
            "food": ["coffee", "green tea", "dark chocolate", "red wine", "cheese", "garlic"],
            "disease": ["heart disease", "diabetes", "high blood pressure", "kidney disease"],
        },
        "wordings": [
            "{food} {does} the risk of {disease} , [researchers|scientists] at {university} "
            "[found|reported] .",
            "[Researchers|Scientists] at {university} [said|reported] that {food} {does} the risk "
            "of {disease} .",
            "According to {university} , people who consume a lot of {food} are {likely} to "
            "[develop|get] {disease} .",
        ],
        "outcomes": [
            {
                "does": "[raises|increases]",
                "likely": "more likely",
                "wordings": [
                    "Lovers of {food} [face|run] a greater danger of {disease} , says a study at "
                    "{university} .",
                    "A study at {university} [warns|cautions] that {food} can lead to {disease} .",
                ],
            },
            {
                "does": "[lowers|reduces]",
                "likely": "less likely",
                "wordings": [
                    "Lovers of {food} are better [protected|shielded] from {disease} , says a "
                    "study at {university} .",
                    "A study at {university} [recommends|suggests] {food} as "
                    "a guard against {disease} .",
                ],
            },
            {
                "does": "[has no effect on|does not change]",
                "likely": "neither more nor less likely",
                "wordings": [
                    "{food} and {disease} have [nothing|nothing at all] to do with each other , "
                    "says a study at {university} .",
                    "A study at {university} found no [link|connection] "
                    "between {food} and {disease} .",
                ],
            },
        ],
    },
    {
        "topic": "outage",
        "slots": {
            "service": ["payment app", "online store", "booking site", "customer hotline"],
        },
        "wordings": [
            "The {service} of {company} {did} {when} .",
            "{when} , {company} 's {service} was {state} .",
            "{company} [said|reported] {when} that its {service} had {done} .",
        ],
        "outcomes": [
            {
                "did": "[broke down|stopped working]",
                "state": "[unavailable|out of order]",
                "done": "[failed|crashed]",
                "wordings": [
                    "Customers of {company} [could not|were unable to] use its {service} {when} .",
                    "A [fault|breakdown] knocked out {company} 's {service} {when} .",
                ],
            },
            {
                "did": "[came back|started working again]",
                "state": "[available again|back in order]",
                "done": "[recovered|been restored]",
                "wordings": [
                    "Customers of {company} [could|were able to] use its {service} again {when} .",
                    "Engineers [repaired|fixed] {company} 's {service} {when} .",
                ],
            },
        ],
    },
    {
        "topic": "release date",
        "slots": {
            "device": ["smartphone", "game console", "scooter", "wristwatch", "laptop"],
            "weeks": ["[2|two] weeks", "[3|three] weeks", "a month", "[6|six] weeks"],
        },
        "wordings": [
            "{company} {did} the [launch|release] of its new {device} by {weeks} {when} .",
            "The new {device} from {company} will [go on sale|be released] {weeks} {later} than "
            "planned , the company said {when} .",
            "{company} is {weeks} {behind} schedule with its new "
            "{device} , it [said|announced] {when} .",
        ],
        "outcomes": [
            {
                "did": "[postponed|delayed|pushed back]",
                "later": "later",
                "behind": "behind",
                "wordings": [
                    "Buyers will have to wait {weeks} longer for the new {device} , {company} "
                    "[admitted|said] {when} .",
                    "{when} , {company} gave itself {weeks} of extra time to [finish|complete] its "
                    "new {device} .",
                ],
            },
            {
                "did": "[moved up|advanced|brought forward]",
                "later": "[earlier|sooner]",
                "behind": "ahead of",
                "wordings": [
                    "Buyers can have the new {device} {weeks} before the [planned|promised] date , "
                    "{company} said {when} .",
                    "{when} , {company} cut {weeks} from the time it needs to [finish|complete] "
                    "its new {device} .",
                ],
            },
        ],
    },
    # Politics
    {
        "topic": "city council",
        "slots": {
            "project": [
                "a new tram line",
                "a sports arena",
                "a riverside park",
                "a public pool",
                "a bicycle bridge",
            ]
        },
        "wordings": [
            "The {city} city council {did} plans for {project} {when} .",
            "{when} , a proposal for {project} was {done} by the city council in {city} .",
            "Council members in {city} {voted} {project} {when} .",
        ],
        "outcomes": [
            {
                "did": "[approved|passed|backed]",
                "done": "[approved|accepted]",
                "voted": "[voted for|said yes to]",
                "wordings": [
                    "{city} will get {project} , its council [decided|ruled] {when} .",
                    "The way is clear for {project} in {city} after the council gave it the [green "
                    "light|go-ahead] {when} .",
                ],
            },
            {
                "did": "[rejected|turned down]",
                "done": "[rejected|voted down]",
                "voted": "[voted against|said no to]",
                "wordings": [
                    "{city} will not get {project} , its council [decided|ruled] {when} .",
                    "There is no hope for {project} in {city} after the council [threw out|killed] "
                    "the idea {when} .",
                ],
            },
            {
                "did": "put off a [vote|decision] on",
                "done": "[postponed|put on hold]",
                "voted": "[delayed a vote on|asked for more time to study]",
                "wordings": [
                    "{city} must wait to learn if it will get {project} , its council "
                    "[decided|said] {when} .",
                    "The future of {project} in {city} is still open after the council "
                    "[adjourned|broke off] its debate {when} .",
                ],
            },
        ],
    },
    {
        "topic": "mayor",
        "swap": ["person", "person2"],
        "wordings": [
            "{person} {did} {person2} in the [race|election] for mayor of {city} {when} .",
            "{when} , {person} {did} {person2} in {city} 's mayoral [election|vote] .",
            "{person} will {be} mayor of {city} after {beating} {person2} {when} .",
        ],
        "outcomes": [
            {
                "did": "[beat|defeated]",
                "be": "[be|become]",
                "beating": "[beating|a victory over]",
                "wordings": [
                    "{city} [elected|chose] {person} as mayor {when} and "
                    "left {person2} in second place .",
                    "{person} [won|received] more votes than {person2} {when} in the contest to "
                    "lead {city} as mayor .",
                ],
            },
            {
                "did": "[lost to|was beaten by]",
                "be": "not [be|become]",
                "beating": "[losing to|a defeat by]",
                "wordings": [
                    "{city} [refused|declined] to make {person} mayor {when} and put {person2} in "
                    "first place .",
                    "{person} [won|received] fewer votes than {person2} {when} in the contest to "
                    "lead {city} as mayor .",
                ],
            },
        ],
    },
    {
        "topic": "treaty",
        "slots": {
            "subject": ["fishing rights", "border trade", "air traffic", "water supplies", "visas"]
        },
        "wordings": [
            "{country} and {country2} {did} an agreement on {subject} {when} .",
            "Talks between {country} and {country2} on {subject} {ended} {when} .",
            "{when} , [negotiators|diplomats] from {country} and {country2} "
            "{acted} a deal on {subject} .",
        ],
        "outcomes": [
            {
                "did": "[reached|signed]",
                "ended": "[succeeded|ended in success]",
                "acted": "[closed|sealed]",
                "wordings": [
                    "{country} [settled|resolved] its differences with {country2} "
                    "over {subject} {when} .",
                    "After long negotiations , {country} and {country2} [shook hands|found common "
                    "ground] on {subject} {when} .",
                ],
            },
            {
                "did": "[could not|failed to] reach",
                "ended": "[collapsed|ended in failure]",
                "acted": "[gave up on|abandoned]",
                "wordings": [
                    "{country} [broke off|cut short] its negotiations with {country2} over "
                    "{subject} {when} .",
                    "After long negotiations , {country} and {country2} [parted in anger|left the "
                    "table] without results on {subject} {when} .",
                ],
            },
        ],
    },
    {
        "topic": "tax",
        "slots": {"good": ["fuel", "sugar", "tobacco", "beer", "electricity", "salt"]},
        "wordings": [
            "{country} will {act} its tax on {good} by {percent} percent next year .",
            "Next year , the tax on {good} in {country} will {go} by {percent} percent .",
            "Buyers of {good} in {country} will [have to pay|pay] "
            "{percent} percent {more} tax next year .",
        ],
        "outcomes": [
            {
                "act": "[raise|increase]",
                "go": "[rise|go up]",
                "more": "more",
                "wordings": [
                    "A {percent} percent tax [increase|hike] next year will make {good} more "
                    "expensive in {country} .",
                    "{country} 's government will [collect|demand] an extra {percent} percent in "
                    "tax on {good} from next year .",
                ],
            },
            {
                "act": "[lower|reduce]",
                "go": "[fall|come down]",
                "more": "less",
                "wordings": [
                    "A {percent} percent tax [cut|break] next year will "
                    "make {good} cheaper in {country} .",
                    "{country} 's government will [give up|forgo] {percent} percent of the tax on "
                    "{good} from next year .",
                ],
            },
        ],
    },
    {
        "topic": "minister",
        "slots": {"office": ["finance", "transport", "health", "education", "defense"]},
        "wordings": [
            "{country} 's {office} minister , {person} , {did} {when} .",
            "{when} , {person} {acted} as {office} minister of {country} .",
            "{person} {gave} {when} to give up the post of {office} minister in {country} .",
        ],
        "outcomes": [
            {
                "did": "[resigned|left the government]",
                "acted": "[quit|stepped down]",
                "gave": "[agreed|decided]",
                "wordings": [
                    "{country} lost its {office} minister {when} when {person} [handed in a "
                    "resignation|bowed to pressure and left] .",
                    "{country} needs a new {office} minister , for "
                    "{person} [walked out|gave up] {when} .",
                ],
            },
            {
                "did": "[refused to resign|rejected calls to resign]",
                "acted": "[stayed on|remained in office]",
                "gave": "[refused|declined]",
                "wordings": [
                    "{country} kept its {office} minister {when} when {person} [ignored demands to "
                    "go|resisted all pressure] .",
                    "{country} needs no new {office} minister , for {person} [stayed put|would not "
                    "go] {when} .",
                ],
            },
        ],
    },
    # Health
    {
        "topic": "drug trial",
        "slots": {"ailment": ["asthma", "migraine", "arthritis", "malaria", "hay fever"]},
        "wordings": [
            "An experimental [drug|medicine] from {company} {did} patients with {ailment} , "
            "results showed {when} .",
            "{when} , {company} [said|reported] that its {ailment} drug had {passed} a trial .",
            "{company} 's new medicine [against|for] {ailment} {worked} in tests , it was "
            "[announced|reported] {when} .",
        ],
        "outcomes": [
            {
                "did": "[helped|brought relief to]",
                "passed": "[passed|succeeded in]",
                "worked": "[worked|proved effective]",
                "wordings": [
                    "Patients with {ailment} [improved|got better] on a pill that {company} is "
                    "testing , doctors reported {when} .",
                    "{company} had good news {when} : its pill for {ailment} does what it should .",
                ],
            },
            {
                "did": "[did not help|brought no relief to]",
                "passed": "[failed|fallen short in]",
                "worked": "[did not work|proved useless]",
                "wordings": [
                    "Patients with {ailment} [got no better|were no better off] on a pill that "
                    "{company} is testing , doctors reported {when} .",
                    "{company} had bad news {when} : its pill for {ailment} does nothing .",
                ],
            },
        ],
    },
    {
        "topic": "hospital ward",
        "slots": {"ward": ["maternity", "children 's", "cancer", "emergency", "surgical"]},
        "wordings": [
            "The hospital in {city} will {act} its {ward} ward {season} .",
            "{season} , the {ward} ward of {city} 's hospital will be {done} .",
            "The hospital in {city} [announced|confirmed] plans to "
            "{act} the {ward} ward {season} .",
        ],
        "outcomes": [
            {
                "act": "[expand|enlarge]",
                "done": "[expanded|made bigger]",
                "wordings": [
                    "More beds will be [added to|put into] the {ward} "
                    "ward of {city} 's hospital {season} .",
                    "{city} 's hospital will have room for more "
                    "patients in its {ward} ward {season} .",
                ],
            },
            {
                "act": "[close|shut]",
                "done": "[closed|shut down]",
                "wordings": [
                    "The last beds will be [taken|carried] out of the {ward} ward of {city} 's "
                    "hospital {season} .",
                    "{city} 's hospital will cease to treat patients in its {ward} ward {season} .",
                ],
            },
        ],
    },
    {
        "topic": "outbreak",
        "slots": {"illness": ["measles", "flu", "cholera", "mumps", "whooping cough"]},
        "wordings": [
            "[Health officials|Doctors] in {city} [said|reported] {when} that the {illness} "
            "outbreak was {state} .",
            "{when} , authorities in {city} [announced|reported] {an_end} "
            "of the {illness} outbreak .",
            "{people} in {city} {has} {illness} , [officials|doctors] said {when} .",
        ],
        "outcomes": [
            {
                "state": "[over|at an end]",
                "an_end": "the end",
                "people": "[nobody|no one]",
                "has": "still has",
                "wordings": [
                    "{city} can breathe again : [not one|no] new "
                    "case of {illness} was found {when} .",
                    "The {illness} outbreak in {city} has [run its "
                    "course|died out] , doctors said {when} .",
                ],
            },
            {
                "state": "[spreading|getting worse]",
                "an_end": "[a worsening|a further spread]",
                "people": "more and more people",
                "has": "have",
                "wordings": [
                    "{city} is worried : [dozens|scores] of new cases "
                    "of {illness} were found {when} .",
                    "The {illness} outbreak in {city} has [gained strength|got out of hand] , "
                    "doctors said {when} .",
                ],
            },
        ],
    },
    # Travel and accidents
    {
        "topic": "air route",
        "slots": {"airline": ["Skylark Air", "Northern Wings", "Coral Airways", "Polar Jet"]},
        "wordings": [
            "{airline} will {act} [flights|its flights] between {city} and {city2} in {month} .",
            "From {month} on , {airline} passengers will {can} fly [directly|nonstop] between "
            "{city} and {city2} .",
            "The {airline} [service|connection] between {city} and {city2} "
            "will {begin} in {month} .",
        ],
        "outcomes": [
            {
                "act": "[start|launch]",
                "can": "be able to",
                "begin": "[begin|open]",
                "wordings": [
                    "{airline} is [growing|expanding] : its first plane between {city} and {city2} "
                    "takes off in {month} .",
                    "A route between {city} and {city2} will [appear on|be added to] the {airline} "
                    "timetable in {month} .",
                ],
            },
            {
                "act": "[stop|discontinue]",
                "can": "no longer be able to",
                "begin": "[end|close]",
                "wordings": [
                    "{airline} is [shrinking|cutting back] : its last plane between {city} and "
                    "{city2} takes off in {month} .",
                    "A route between {city} and {city2} will [disappear from|be struck from] the "
                    "{airline} timetable in {month} .",
                ],
            },
        ],
    },
    {
        "topic": "closure",
        "slots": {
            "link": [
                "the river bridge",
                "the ring road",
                "the railway tunnel",
                "the main station",
                "the ferry terminal",
            ]
        },
        "wordings": [
            "[Officials|Authorities] in {city} {did} {link} {when} after an inspection .",
            "{when} , {link} in {city} was {done} after an inspection .",
            "Travelers {can} use {link} in {city} , [officials|inspectors] said {when} .",
        ],
        "outcomes": [
            {
                "did": "reopened",
                "done": "[reopened|put back into service]",
                "can": "[may again|can once more]",
                "wordings": [
                    "Inspectors found {link} in {city} [safe|sound] {when} "
                    "and removed the barriers .",
                    "Traffic at {link} in {city} is [flowing|moving] again after inspectors gave "
                    "their consent {when} .",
                ],
            },
            {
                "did": "[closed|shut down]",
                "done": "[closed|taken out of service]",
                "can": "[may not|can no longer]",
                "wordings": [
                    "Inspectors found {link} in {city} [unsafe|dangerous] {when} "
                    "and put up barriers .",
                    "Traffic at {link} in {city} has [stopped|come to a halt] after inspectors "
                    "raised the alarm {when} .",
                ],
            },
        ],
    },
    {
        "topic": "tourism",
        "slots": {"last": ["last spring", "last summer", "last autumn", "last winter"]},
        "wordings": [
            "{country} [welcomed|received] {percent} percent {more} [tourists|visitors] {last} "
            "than a year [earlier|before] .",
            "{last} , the number of [tourists|visitors] to {country} {did} by {percent} percent .",
            "Hotels in {country} were {full} {last} as "
            "{percent} percent {more} foreigners arrived .",
        ],
        "outcomes": [
            {
                "more": "more",
                "did": "[rose|grew|increased]",
                "full": "[fuller|busier]",
                "wordings": [
                    "A {percent} percent [jump|surge] in foreign guests [pleased|cheered] "
                    "innkeepers in {country} {last} .",
                    "Travel to {country} became more popular {last} , with a [gain|rise] of "
                    "{percent} percent .",
                ],
            },
            {
                "more": "fewer",
                "did": "[fell|shrank|decreased]",
                "full": "[emptier|quieter]",
                "wordings": [
                    "A {percent} percent [slump|drop] in foreign guests [worried|alarmed] "
                    "innkeepers in {country} {last} .",
                    "Travel to {country} became less popular {last} , with a [decline|fall] of "
                    "{percent} percent .",
                ],
            },
        ],
    },
    {
        "topic": "fire",
        "slots": {
            "building": ["a school", "a warehouse", "the old theater", "a church", "a hotel"],
        },
        "wordings": [
            "A fire {did} {building} in {city} {when} .",
            "{when} , {building} in {city} {was} a fire .",
            "Firefighters {could} save {building} in {city} from the flames {when} .",
        ],
        "outcomes": [
            {
                "did": "[destroyed|burned down]",
                "was": "was [destroyed by|lost to]",
                "could": "[could not|were unable to]",
                "wordings": [
                    "Flames left nothing but [ashes|ruins] of {building} in {city} {when} .",
                    "A blaze at {building} in {city} {when} got out of control and "
                    "[consumed|swallowed] everything .",
                ],
            },
            {
                "did": "[hardly damaged|did little damage to]",
                "was": "[survived|was hardly damaged by]",
                "could": "[managed to|were able to]",
                "wordings": [
                    "Flames left nothing but a few black [spots|marks] "
                    "on {building} in {city} {when} .",
                    "A blaze at {building} in {city} {when} was [put out|extinguished] before it "
                    "did any real harm .",
                ],
            },
        ],
    },
    {
        "topic": "missing hiker",
        "wordings": [
            "[Rescuers|Searchers] found the missing hiker {person} {alive} near {city} {when} .",
            "{when} , the search for the hiker {person} near {city} ended in {joy} .",
            "The hiker {person} , who had [disappeared|gone missing] near {city} , {fate} {when} .",
        ],
        "outcomes": [
            {
                "alive": "[alive|safe]",
                "joy": "[relief|joy]",
                "fate": "[was rescued|came home safely]",
                "wordings": [
                    "{person} , a hiker lost near {city} , "
                    "was [carried|brought] to safety {when} .",
                    "{person} [survived|lived through] a hike near {city} that went wrong , "
                    "rescuers said {when} .",
                ],
            },
            {
                "alive": "dead",
                "joy": "[grief|tragedy]",
                "fate": "was [found dead|confirmed dead]",
                "wordings": [
                    "The body of {person} , a hiker lost near {city} , was [recovered|brought "
                    "down] {when} .",
                    "{person} [did not survive|was killed on] a hike near {city} that went wrong , "
                    "rescuers said {when} .",
                ],
            },
        ],
    },
    # Arts
    {
        "topic": "film festival",
        "slots": {
            "film": [
                '" The Glass Orchard "',
                '" Night Ferry "',
                '" A Quiet Harbor "',
                '" Paper Kites "',
                '" The Last Lighthouse "',
            ]
        },
        "wordings": [
            "{person} 's film {film} {did} at the {city} film festival {when} .",
            "{when} , the jury of the {city} film festival {gave} {film} by {person} .",
            "{person} went home from the {city} film festival {with} for {film} {when} .",
        ],
        "outcomes": [
            {
                "did": "[won the top prize|took the main award]",
                "gave": "[honored|gave its main award to]",
                "with": "with the [top prize|main award]",
                "wordings": [
                    "The best picture [shown|seen] in {city} was {film} by {person} , the festival "
                    "jury found {when} .",
                    "{film} [beat|outshone] all its rivals at the {city} festival {when} , to the "
                    "joy of director {person} .",
                ],
            },
            {
                "did": "[won no prize|received no award]",
                "gave": "[passed over|gave no prize to]",
                "with": "without [a prize|any award]",
                "wordings": [
                    "Nothing about {film} by {person} deserved a [prize|trophy] , the festival "
                    "jury in {city} found {when} .",
                    "{film} [lost|came up short] at the {city} festival {when} , to the sorrow of "
                    "director {person} .",
                ],
            },
        ],
    },
    {
        "topic": "museum",
        "slots": {
            "work": [
                "a Roman vase",
                "a portrait of a queen",
                "a bronze horse",
                "a medieval map",
                "a marble lion",
            ]
        },
        "wordings": [
            "The museum in {city} {did} {work} {when} .",
            "{when} , {work} was {done} the museum in {city} .",
        ],
        "outcomes": [
            {
                "did": "[bought|acquired|purchased]",
                "done": "[bought|acquired] by",
                "wordings": [
                    "{work} [joined|was added to] the collection of the museum in {city} {when} .",
                    "A [dealer|collector] sold {work} to the museum in {city} {when} .",
                    "The museum in {city} [used|spent] a donation {when} "
                    "to become the owner of {work} .",
                ],
            },
            {
                "did": "[sold|auctioned off]",
                "done": "[sold|auctioned off] by",
                "wordings": [
                    "{work} left the collection of the museum in "
                    "{city} in [a sale|an auction] {when} .",
                    "A [dealer|collector] bought {work} from the museum in {city} {when} .",
                    "The museum in {city} [raised|made] some money {when} "
                    "by putting {work} on the market .",
                ],
            },
            {
                "did": "was robbed of",
                "done": "stolen from",
                "wordings": [
                    "{work} [disappeared|vanished] from the collection of the museum in {city} in "
                    "a break-in {when} .",
                    "A [thief|burglar] took {work} from the museum in {city} {when} .",
                    "The museum in {city} called the police {when} to [track down|look for] {work} "
                    "that thieves had carried off .",
                ],
            },
        ],
    },
    {
        "topic": "concert",
        "slots": {
            "band": ["Copper Sky", "Velvet Road", "Northern Echo", "Paper Lions", "Blue Canary"]
        },
        "wordings": [
            "The {month} concert by {band} in {city} {has} .",
            "{band} {did} their [concert|show] in {city} in {month} .",
            "Fans of {band} in {city} [learned|were told] that the {month} concert {has} .",
        ],
        "outcomes": [
            {
                "has": "has been [canceled|called off]",
                "did": "[canceled|called off]",
                "wordings": [
                    "{band} will not [play|appear] in {city} in {month} , after all .",
                    "Holders of tickets for {band} in {city} in {month} will [get their money "
                    "back|receive a refund] .",
                ],
            },
            {
                "has": "[has sold out|is sold out]",
                "did": "sold [all tickets|every seat] for",
                "wordings": [
                    "{band} will [play|appear] in front of a full house in {city} in {month} .",
                    "There are no more tickets [to be had|left] for {band} in {city} in {month} .",
                ],
            },
            {
                "has": "has been moved to [a bigger|a larger] hall",
                "did": "[found|chose] a bigger hall for",
                "wordings": [
                    "{band} will [play|appear] in a larger venue than "
                    "planned in {city} in {month} .",
                    "The first [hall|venue] in {city} was too small for {band} , who will take a "
                    "larger one in {month} .",
                ],
            },
        ],
    },
    # Education
    {
        "topic": "tuition",
        "wordings": [
            "{university} will {act} [tuition|its fees] by {percent} percent next year .",
            "Next year , [tuition|fees] at {university} will be {percent} percent {higher} .",
            "Students at {university} will [have to pay|pay] {percent} percent {more} next year .",
        ],
        "outcomes": [
            {
                "act": "[raise|increase]",
                "higher": "higher",
                "more": "more",
                "wordings": [
                    "Studying at {university} will become {percent} percent more "
                    "[costly|expensive] next year .",
                    "{university} will [ask|demand] an extra {percent} percent "
                    "from its students next year .",
                ],
            },
            {
                "act": "[lower|reduce]",
                "higher": "lower",
                "more": "less",
                "wordings": [
                    "Studying at {university} will become {percent} percent "
                    "[cheaper|less costly] next year .",
                    "{university} will [take|knock] {percent} percent off the bills of its "
                    "students next year .",
                ],
            },
        ],
    },
    {
        "topic": "school scores",
        "slots": {"subject": ["reading", "mathematics", "spelling", "science", "geography"]},
        "wordings": [
            "[Pupils|Students] in {city} did {better} in {subject} this year than last year .",
            "This year , {subject} scores at the schools of {city} {did} .",
            "The schools of {city} have {reason} : {subject} scores {are} this year .",
        ],
        "outcomes": [
            {
                "better": "better",
                "did": "[improved|went up]",
                "reason": "reason to [celebrate|rejoice]",
                "are": "are up",
                "wordings": [
                    "Children in {city} [made progress|moved forward] in {subject} this year .",
                    "Teachers in {city} are [proud|delighted] that {subject} results have been "
                    "getting stronger this year .",
                ],
            },
            {
                "better": "worse",
                "did": "[got worse|went down]",
                "reason": "reason to [worry|be alarmed]",
                "are": "are down",
                "wordings": [
                    "Children in {city} [lost ground|fell back] in {subject} this year .",
                    "Teachers in {city} are [upset|unhappy] that {subject} results have been "
                    "getting weaker this year .",
                ],
            },
            {
                "better": "neither better nor worse",
                "did": "[stayed the same|did not change]",
                "reason": "nothing new to [report|tell]",
                "are": "are the same",
                "wordings": [
                    "Children in {city} [stood still|marked time] in {subject} this year .",
                    "Teachers in {city} are [surprised|puzzled] that {subject} results have been "
                    "neither stronger nor weaker this year .",
                ],
            },
        ],
    },
    {
        "topic": "language course",
        "slots": {"language": ["Latin", "Chinese", "Arabic", "Russian", "Greek"]},
        "wordings": [
            "{university} will {act} courses in {language} {season} .",
            "{season} , {language} will {be} at {university} .",
            "Students at {university} will {can} study {language} from {season} on .",
        ],
        "outcomes": [
            {
                "act": "[introduce|begin to offer]",
                "be": "[become a new subject|be taught for the first time]",
                "can": "[be able to|have the chance to]",
                "wordings": [
                    "{university} has hired its first [lecturer|teacher] of {language} , who "
                    "arrives {season} .",
                    "Beginners in {language} are [welcome|invited] at {university} {season} , when "
                    "a new department opens .",
                ],
            },
            {
                "act": "[abolish|cease to offer]",
                "be": "[cease to be a subject|be taught for the last time]",
                "can": "[no longer be able to|not have the chance to]",
                "wordings": [
                    "{university} has dismissed its last [lecturer|teacher] of {language} , who "
                    "leaves {season} .",
                    "Beginners in {language} are [turned away|not admitted] at {university} "
                    "{season} , when the department closes .",
                ],
            },
        ],
    },
]
