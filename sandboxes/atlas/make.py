"""Write the pages of the atlas beside this file: python sandboxes/atlas/make.py

The table was written by hand from common knowledge; areas in square kilometres. Neighbours without a page of their own are plain text."""
import html
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent

# country | capital | on the water | continent | area | currency | official languages | neighbours | drives on the | access to the sea
TABLE = '''
Argentina | Buenos Aires | Río de la Plata | South America | 2,780,400 | Argentine peso | Spanish | Bolivia, Brazil, Chile, Paraguay, Uruguay | right | yes
Bolivia | Sucre | | South America | 1,098,581 | boliviano | Spanish, Quechua, Aymara, Guaraní | Argentina, Brazil, Chile, Paraguay, Peru | right | no
Brazil | Brasília | Lake Paranoá | South America | 8,515,767 | real | Portuguese | Argentina, Bolivia, Colombia, French Guiana, Guyana, Paraguay, Peru, Suriname, Uruguay, Venezuela | right | yes
Chile | Santiago | Mapocho | South America | 756,102 | Chilean peso | Spanish | Argentina, Bolivia, Peru | right | yes
Colombia | Bogotá | Bogotá River | South America | 1,141,748 | Colombian peso | Spanish | Brazil, Ecuador, Panama, Peru, Venezuela | right | yes
Ecuador | Quito | | South America | 283,561 | United States dollar | Spanish | Colombia, Peru | right | yes
Guyana | Georgetown | Demerara | South America | 214,969 | Guyanese dollar | English | Brazil, Suriname, Venezuela | left | yes
Paraguay | Asunción | Paraguay River | South America | 406,752 | guaraní | Spanish, Guaraní | Argentina, Bolivia, Brazil | right | no
Peru | Lima | Rímac | South America | 1,285,216 | sol | Spanish, Quechua, Aymara | Bolivia, Brazil, Chile, Colombia, Ecuador | right | yes
Suriname | Paramaribo | Suriname River | South America | 163,820 | Surinamese dollar | Dutch | Brazil, French Guiana, Guyana | left | yes
Uruguay | Montevideo | Río de la Plata | South America | 176,215 | Uruguayan peso | Spanish | Argentina, Brazil | right | yes
Venezuela | Caracas | Guaire | South America | 916,445 | bolívar | Spanish | Brazil, Colombia, Guyana | right | yes
Austria | Vienna | Danube | Europe | 83,879 | euro | German | Czechia, Germany, Hungary, Italy, Liechtenstein, Slovakia, Slovenia, Switzerland | right | no
Belgium | Brussels | Senne | Europe | 30,689 | euro | Dutch, French, German | France, Germany, Luxembourg, Netherlands | right | yes
Croatia | Zagreb | Sava | Europe | 56,594 | euro | Croatian | Bosnia and Herzegovina, Hungary, Montenegro, Serbia, Slovenia | right | yes
Czechia | Prague | Vltava | Europe | 78,871 | Czech koruna | Czech | Austria, Germany, Poland, Slovakia | right | no
Finland | Helsinki | Gulf of Finland | Europe | 338,455 | euro | Finnish, Swedish | Norway, Russia, Sweden | right | yes
Germany | Berlin | Spree | Europe | 357,592 | euro | German | Austria, Belgium, Czechia, Denmark, France, Luxembourg, Netherlands, Poland, Switzerland | right | yes
Greece | Athens | | Europe | 131,957 | euro | Greek | Albania, Bulgaria, North Macedonia, Turkey | right | yes
Hungary | Budapest | Danube | Europe | 93,030 | forint | Hungarian | Austria, Croatia, Romania, Serbia, Slovakia, Slovenia, Ukraine | right | no
Ireland | Dublin | Liffey | Europe | 70,273 | euro | English, Irish | United Kingdom | left | yes
Italy | Rome | Tiber | Europe | 301,340 | euro | Italian | Austria, France, San Marino, Slovenia, Switzerland, Vatican City | right | yes
Norway | Oslo | Oslofjord | Europe | 385,207 | Norwegian krone | Norwegian | Finland, Russia, Sweden | right | yes
Poland | Warsaw | Vistula | Europe | 312,696 | złoty | Polish | Belarus, Czechia, Germany, Lithuania, Russia, Slovakia, Ukraine | right | yes
Portugal | Lisbon | Tagus | Europe | 92,212 | euro | Portuguese | Spain | right | yes
Romania | Bucharest | Dâmbovița | Europe | 238,397 | Romanian leu | Romanian | Bulgaria, Hungary, Moldova, Serbia, Ukraine | right | yes
Slovakia | Bratislava | Danube | Europe | 49,035 | euro | Slovak | Austria, Czechia, Hungary, Poland, Ukraine | right | no
Slovenia | Ljubljana | Ljubljanica | Europe | 20,273 | euro | Slovene | Austria, Croatia, Hungary, Italy | right | yes
Sweden | Stockholm | Lake Mälaren | Europe | 450,295 | Swedish krona | Swedish | Finland, Norway | right | yes
Switzerland | Bern | Aare | Europe | 41,285 | Swiss franc | German, French, Italian, Romansh | Austria, France, Germany, Italy, Liechtenstein | right | no
Bangladesh | Dhaka | Buriganga | Asia | 147,570 | taka | Bengali | India, Myanmar | left | yes
Cambodia | Phnom Penh | Mekong | Asia | 181,035 | riel | Khmer | Laos, Thailand, Vietnam | right | yes
Japan | Tokyo | Tokyo Bay | Asia | 377,975 | yen | Japanese | | left | yes
Kazakhstan | Astana | Ishim | Asia | 2,724,900 | tenge | Kazakh, Russian | China, Kyrgyzstan, Russia, Turkmenistan, Uzbekistan | right | no
Kyrgyzstan | Bishkek | | Asia | 199,951 | Kyrgyz som | Kyrgyz, Russian | China, Kazakhstan, Tajikistan, Uzbekistan | right | no
Laos | Vientiane | Mekong | Asia | 236,800 | kip | Lao | Cambodia, China, Myanmar, Thailand, Vietnam | right | no
Mongolia | Ulaanbaatar | Tuul | Asia | 1,564,116 | tögrög | Mongolian | China, Russia | right | no
Nepal | Kathmandu | Bagmati | Asia | 147,181 | Nepalese rupee | Nepali | China, India | left | no
Thailand | Bangkok | Chao Phraya | Asia | 513,120 | baht | Thai | Cambodia, Laos, Malaysia, Myanmar | left | yes
Uzbekistan | Tashkent | Chirchiq | Asia | 447,400 | Uzbek sum | Uzbek | Afghanistan, Kazakhstan, Kyrgyzstan, Tajikistan, Turkmenistan | right | no
Vietnam | Hanoi | Red River | Asia | 331,690 | dong | Vietnamese | Cambodia, China, Laos | right | yes
Botswana | Gaborone | | Africa | 581,730 | pula | English | Namibia, South Africa, Zambia, Zimbabwe | left | no
Ghana | Accra | Gulf of Guinea | Africa | 238,533 | cedi | English | Burkina Faso, Ivory Coast, Togo | right | yes
Kenya | Nairobi | Nairobi River | Africa | 580,367 | Kenyan shilling | English, Swahili | Ethiopia, Somalia, South Sudan, Tanzania, Uganda | left | yes
Madagascar | Antananarivo | | Africa | 587,041 | ariary | Malagasy, French | | right | yes
Namibia | Windhoek | | Africa | 825,615 | Namibian dollar | English | Angola, Botswana, South Africa, Zambia | left | yes
Rwanda | Kigali | | Africa | 26,338 | Rwandan franc | Kinyarwanda, English, French, Swahili | Burundi, DR Congo, Tanzania, Uganda | right | no
Senegal | Dakar | Atlantic Ocean | Africa | 196,722 | West African CFA franc | French | Gambia, Guinea, Guinea-Bissau, Mali, Mauritania | right | yes
Tunisia | Tunis | Lake of Tunis | Africa | 163,610 | Tunisian dinar | Arabic | Algeria, Libya | right | yes
Uganda | Kampala | Lake Victoria | Africa | 241,038 | Ugandan shilling | English, Swahili | DR Congo, Kenya, Rwanda, South Sudan, Tanzania | left | no
Zambia | Lusaka | | Africa | 752,618 | kwacha | English | Angola, Botswana, DR Congo, Malawi, Mozambique, Namibia, Tanzania, Zimbabwe | left | no
'''
FIELDS = 'name capital water continent area currency languages borders side sea'.split()
STYLE = ('body{font:15px/1.45 sans-serif;max-width:44em;margin:1em auto;padding:0 1em;color:#222}th{text-align:left;padding:.2em 1.2em .2em 0;vertical-align:top;font-weight:600}'
         'td{padding:.2em 0}nav{font-size:14px;color:#666}a{color:#0b57a4}label{display:block;margin:.7em 0}input,select,textarea{font:inherit}ul{margin:0;padding-left:1.2em}')


def slug(text): return re.sub(r'[^a-z0-9]+', '-', unicodedata.normalize('NFKD', text.replace('ł', 'l')).encode('ascii', 'ignore').decode().lower()).strip('-')


def countries():
    "The rows of the table."
    rows = [dict(zip(FIELDS, map(str.strip, o.split('|')))) for o in TABLE.strip().splitlines()]
    for o in rows: o.update(languages=o['languages'].split(', '), borders=[p for p in o['borders'].split(', ') if p])
    return rows


def page(path, title, facts=(), body=''):
    "Write one page: a heading, a table of facts, links back."
    up = '../' * path.count('/')
    rows = ''.join(f'<tr><th>{label}</th><td>{value}</td></tr>\n' for label, value in facts if value)
    table = f'<table>\n{rows}</table>\n' if rows else ''
    text = (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)} · Atlas</title>'
            f'<style>{STYLE}</style></head>\n<body><nav><a href="{up}index.html">Atlas</a></nav>\n<h1>{html.escape(title)}</h1>\n{table}{body}</body></html>\n')
    (HERE/path).parent.mkdir(exist_ok=True)
    (HERE/path).write_text(text, encoding='utf-8')


def link(kind, name): return f'<a href="../{kind}/{slug(name)}.html">{html.escape(name)}</a>'
def listed(items): return f'<ul>{"".join(f"<li>{o}</li>" for o in items)}</ul>'


FEEDBACK = '''<form id="feedback"><label>Your name <input name="name"></label><label>E-mail <input name="email"></label>
<label>Topic <select name="topic"><option>A mistake</option><option>A missing country</option><option>Praise</option></select></label>
<label><input type="checkbox" name="answer" value="yes"> Please answer me</label><label>Message <textarea name="message" rows="3" cols="40"></textarea></label><button>Send feedback</button></form>
'''
ORDER = '''<form id="order"><label>City <input name="city"></label><label>Copies <input name="copies" type="number" value="1" min="1" max="99"></label>
<label>Format <select name="format"><option>Folded</option><option>Poster</option><option>Digital</option></select></label>
<fieldset><legend>Paper</legend><label><input type="radio" name="paper" value="plain" checked> Plain</label><label><input type="radio" name="paper" value="coated"> Coated</label></fieldset>
<label><input type="checkbox" name="gift" value="yes"> Gift wrapping</label><button>Order map</button></form>
'''

if __name__ == '__main__':
    rows = countries()
    area = {o['name']: int(o['area'].replace(',', '')) for o in rows}
    largest = lambda names, sign=1: link('countries', max(names, key=lambda n: sign * area[n])) if len(names) > 1 else ''
    known, money, tongues, places = {o['name'] for o in rows}, defaultdict(list), defaultdict(list), defaultdict(list)
    for o in rows:
        money[o['currency']].append(o['name']); places[o['continent']].append(o['name'])
        for tongue in o['languages']: tongues[tongue].append(o['name'])
        page(f"countries/{slug(o['name'])}.html", o['name'], [
            ('Capital', link('capitals', o['capital'])), ('Continent', link('continents', o['continent'])), ('Area', f"{o['area']} km²"), ('Currency', link('currencies', o['currency'])),
            ('Official language', listed(link('languages', t) for t in o['languages'])),
            ('Borders', listed(link('countries', n) if n in known else html.escape(n) for n in o['borders']) if o['borders'] else ''),
            ('Largest neighbour in this atlas', largest([n for n in o['borders'] if n in known])),
            ('Drives on the', o['side']), ('Access to the sea', o['sea'])])
        page(f"capitals/{slug(o['capital'])}.html", o['capital'], [('Capital of', link('countries', o['name'])), ('Lies on', html.escape(o['water']))])
    for kind, label, found in (('currencies', 'Used in', money), ('languages', 'Official in', tongues), ('continents', 'Countries', places)):
        for name, where in found.items():
            page(f'{kind}/{slug(name)}.html', name, [(label, listed(link('countries', n) for n in sorted(where))), ('Largest country in this atlas', largest(where)), ('Smallest country in this atlas', largest(where, -1))])
    page('feedback.html', 'Feedback', body=FEEDBACK)
    page('order.html', 'Order a map', body=ORDER)
    shelves = ''.join(f'<li><a href="continents/{slug(o)}.html">{o}</a></li>' for o in sorted(places))
    page('index.html', 'Atlas', body=f'<p>{len(rows)} countries of four continents.</p><ul>{shelves}</ul><p><a href="order.html">Order a map</a> · <a href="feedback.html">Feedback</a></p>')
